"""Every effective value of a profile on this machine with this model, and where it came from."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from appliance.checkpoint import index_keys
from appliance.checkpoint.cache_specs import pool_windows
from appliance.checkpoint.config import DTYPES, ModelConfig
from appliance.checkpoint.drafting import with_drafts, with_head
from appliance.checkpoint.index_keys import with_index_keys
from appliance.checkpoint.memory import (
    CACHE_DTYPES,
    MemoryLimits,
    MemoryPlan,
    NativeFootprint,
    plan_memory,
)
from appliance.checkpoint.selection import selection_context
from appliance.checkpoint.sharding import obstacle, sharded
from appliance.checkpoint.sites import places
from appliance.engines import engine_named
from appliance.hardware.device import Device, gpus_of_ranks, select_device
from appliance.hardware.engine_machine import Machine
from appliance.hardware.gpu import Gpu
from appliance.hardware.machine import Inventory
from appliance.plan.capacity import memory_limits, memory_of_rank
from appliance.profile.document import value_of
from appliance.profile.schema import SETTINGS, Profile
from appliance.profile.sizes import size_text
from kernels.attention_workspace import WORKSPACES, workspace_tensors
from kernels.catalogue import OPS
from kernels.paged_attention.workspace import Step
from kernels.selection import AUTO, BackendRefusedError, Context, Explanation, explain, heaviest_names

Attention = Callable[[int], tuple[tuple[int, ...], ...]]
Source = Literal["default", "profile", "model", "gpu", "environment", "engine"]


class EffectiveValue(msgspec.Struct, frozen=True):
    """`why` says in words what the value follows from; empty where the source says all."""

    value: Any
    source: Source
    why: str = ""


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """`values` has one entry for each setting. `selection` says for each op that this model needs which backend it
    gets, or why none; `context` is what that was judged by. `memory`, `context` and `selection` are those of each of
    `ranks`, which run on `gpus`."""

    values: Mapping[str, EffectiveValue]
    device: Device
    memory: MemoryPlan
    context: Context
    selection: tuple[Explanation, ...]
    ranks: int = 1
    gpus: tuple[Gpu, ...] = ()

    def __getitem__(self, key: str) -> EffectiveValue:
        return self.values[key]

    @property
    def refusals(self) -> tuple[BackendRefusedError, ...]:
        return tuple(explanation.refusal for explanation in self.selection if explanation.refusal)


def resolve(profile: Profile, *, config: ModelConfig, machine: Machine) -> Effective:
    """The one place where backends are chosen and memory is planned: preflight, `ingot explain`, the console and the
    launch all ask here, and the core binds what was chosen.

    Everything is judged by `machine`: its GPUs, the libraries that its engine has, and the cast that it is sealed to.

    Raises DeviceError when the profile names a device that is not there.
    """
    inventory = machine.for_next
    ranks = _ranks(profile, config)
    device = select_device(profile.device, inventory, machine.environ, ranks)
    gpus = gpus_of_ranks(device, inventory, machine.environ, ranks)
    config = sharded(_drafting(with_index_keys(config, profile.index_key_dtype), profile), ranks)
    values = {setting.key: _as_given(profile, setting.key, setting.default) for setting in SETTINGS}
    if profile.served_model_name == profile.name:
        values["served-model-name"] = EffectiveValue(profile.name, "default", "the profile's name")
    values["device"] = EffectiveValue(device.name, device.source, device.why)
    if profile.dtype == "auto":
        values["dtype"] = _dtype(config, device, inventory)
    dtype: str = values["dtype"].value
    if profile.kv_cache_dtype == "auto":
        values["kv-cache-dtype"] = EffectiveValue(dtype, "default", "the same as dtype")
    own_server = engine_named(profile.engine).own_server
    published = None if own_server or profile.index_key_dtype != index_keys.AUTO else index_keys.published(config)
    if published:
        values["index-key-dtype"] = EffectiveValue(published, "model", "as the family's own code has them")
        if CACHE_DTYPES.get(values["kv-cache-dtype"].value) == "float32":
            values["index-key-dtype"] = EffectiveValue("float32", "engine", "as the cache")
    if profile.block_size % config.block_multiple and not engine_named(profile.engine).measures_memory:
        why = f"the model keeps entries of up to {config.block_multiple} tokens, which a block must hold whole"
        values["block-size"] = EffectiveValue(block_size_for(config), "model", why)
    context = _context(profile, config, device, values, machine)
    selection = _selection(profile, config, context)
    if why := _without_graphs(profile, config, context, selection):
        values["enforce-eager"] = EffectiveValue(True, "engine", why)
        context = dataclasses.replace(context, cuda_graphs=False)
        selection = _selection(profile, config, context)
    limits = memory_limits(
        profile, dtype=dtype, kv_cache_dtype=values["kv-cache-dtype"].value, block_size=values["block-size"].value
    )
    footprint = NativeFootprint(
        config,
        limits,
        device=device.kind,
        attention=_attention(selection, context, limits, pool_windows(config.cache_specs)),
        backends=heaviest_names(selection),
        unified=device.gpu is not None and device.gpu.memory_kind == "unified",
        graphs=context.cuda_graphs,
    )
    memory = plan_memory(footprint, limits, memory_of_rank(gpus, inventory, profile.gpu_memory_utilization, ranks))
    if memory.shortened:
        why = f"the model's {config.context_length:,} tokens do not fit into memory"
        values["max-model-len"] = EffectiveValue(memory.max_model_len, "engine", why)
    elif profile.max_model_len is None:
        values["max-model-len"] = EffectiveValue(memory.max_model_len, "model", "the model's own limit")
    if profile.kv_cache_memory_bytes is None:
        why = ", ".join(
            f"{pool.num_blocks:,} blocks of {size_text(pool.block_bytes)}"
            + (f" for windows of {pool.window:,} tokens" if pool.window else "")
            for pool in memory.pools
        )
        values["kv-cache-memory-bytes"] = EffectiveValue(memory.cache_bytes, "engine", why)
    values |= backend_values(profile, context, selection)
    return Effective(
        values=values, device=device, memory=memory, context=context, selection=selection, ranks=ranks, gpus=gpus
    )


def uses_head(profile: Profile) -> bool:
    """Whether the native engine runs the model's head for drafts as a further layer."""
    return profile.speculative_config.method == "mtp" and not engine_named(profile.engine).own_server


def _drafting(config: ModelConfig, profile: Profile) -> ModelConfig:
    """The model as it drafts; another engine sees to that itself."""
    if engine_named(profile.engine).own_server:
        return config
    return with_drafts(with_head(config) if uses_head(profile) else config, profile.speculative_config.most)


def block_size_for(config: ModelConfig) -> int:
    """Of a model whose blocks must be multiples of `block_multiple`: two of the longest entries fill a block, so that
    its padding is small beside it."""
    return 2 * config.block_multiple


def _ranks(profile: Profile, config: ModelConfig) -> int:
    """Those whose memory and kernels are planned here, each by itself; preflight says where the model cannot be shared
    by as many as the profile says."""
    size = profile.tensor_parallel_size
    return 1 if engine_named(profile.engine).measures_memory or obstacle(config, size) else size


def _as_given(profile: Profile, key: str, default: Any) -> EffectiveValue:
    value = value_of(profile, key)
    return EffectiveValue(value, "default" if value == default else "profile")


def _dtype(config: ModelConfig, device: Device, inventory: Inventory) -> EffectiveValue:
    """On a CPU, half precision is slower, unless the processor has bfloat16 instructions: then weights take half the
    time to read."""
    if device.gpu is None:
        if config.dtype == "bfloat16" and inventory.host.bfloat16:
            return EffectiveValue("bfloat16", "model", "the checkpoint's own, which this processor supports")
        return EffectiveValue("float32", "engine", "the fastest format on this processor")
    if config.dtype not in DTYPES:
        return EffectiveValue("bfloat16", "engine", "the checkpoint does not say its format")
    if config.dtype == "bfloat16" and device.gpu.compute_capability < (8, 0):
        return EffectiveValue("float16", "gpu", f"{device.gpu.name} does not support bfloat16")
    return EffectiveValue(config.dtype, "model", "the checkpoint's own")


def _context(
    profile: Profile,
    config: ModelConfig,
    device: Device,
    values: Mapping[str, EffectiveValue],
    machine: Machine,
) -> Context:
    kv_cache_dtype = values["kv-cache-dtype"].value
    return selection_context(
        config,
        device=device.kind,
        capability=device.gpu.compute_capability if device.gpu else None,
        dtype=values["dtype"].value,
        kv_cache_dtype=CACHE_DTYPES.get(kv_cache_dtype, kv_cache_dtype),
        cuda_graphs=device.gpu is not None and not profile.enforce_eager,
        libraries=machine.libraries,
        cpu_features=machine.inventory.host.cpu_features,
        cast=machine.cast if device.gpu else None,
        workers=workers(profile),
        engine=profile.engine,
    )


def _selection(profile: Profile, config: ModelConfig, context: Context) -> tuple[Explanation, ...]:
    """By place for the native engine, whose model's places are known."""
    at = () if engine_named(profile.engine).measures_memory else places(config, context)
    return explain(OPS, context, profile.backends, at, profile.site_backends)


def _without_graphs(profile: Profile, config: ModelConfig, context: Context, selection: Sequence[Explanation]) -> str:
    """Why the native engine captures no CUDA graphs although the profile does not forbid them; "" where it does."""
    if profile.enforce_eager or not engine_named(profile.engine).plans_graphs:
        return ""
    if not context.cuda_graphs:
        return "CUDA graphs need a GPU"
    for found in selection:
        for backend in found.used:
            if not backend.captured:
                return f"CUDA graphs cannot hold the {backend.name} backend of {found.op.name}"
    eager = _selection(profile, config, dataclasses.replace(context, cuda_graphs=False))
    for found, without in zip(selection, eager, strict=True):
        if found.refusal and without.chosen:
            return f"CUDA graphs cannot hold the {without.chosen.name} backend of {without.op.name}"
    return ""


def _attention(
    selection: Sequence[Explanation], context: Context, limits: MemoryLimits, windows: Sequence[int | None]
) -> Attention:
    """What the chosen backend of attention works in, by the longest context: where all layers have `windows`, that is a
    window and a chunk. Nothing where the launch is refused for want of a backend; and vLLM measures by itself what its
    own takes."""
    found = [explanation for explanation in selection if explanation.op.name in WORKSPACES]
    used = [(each.op.name, backend) for each in found for backend in each.used]
    if not all(each.used for each in found) or any(engine_named(each.engine).measures_memory for _, each in used):
        return lambda _: ()
    tokens, seqs = limits.max_num_batched_tokens, limits.most_rows
    most = sys.maxsize if windows[0] is None else windows[0] + tokens + limits.block_size

    def tensors(length: int) -> tuple[tuple[int, ...], ...]:
        step = Step(tokens, seqs, min(length, most))
        return tuple(each for op, backend in used for each in workspace_tensors({op: backend.name}, context, step))

    return tensors


def workers(profile: Profile) -> int:
    """Processes that run one model together."""
    flags = profile.engine_options.extra_args
    others = [flags.get(f"{kind}-parallel-size", 1) for kind in ("pipeline", "data")]
    return math.prod([profile.tensor_parallel_size, *others])


def backend_values(profile: Profile, context: Context, selection: Sequence[Explanation]) -> dict[str, EffectiveValue]:
    """The backend behind each setting that chooses one; a setting that decides nothing for this model says so."""
    found: dict[str, EffectiveValue] = {}
    for name, requested in profile.backends.items():
        source: Source = "default" if requested == AUTO else "profile"
        explanation = next((explanation for explanation in selection if explanation.op.setting == name), None)
        if explanation is None:
            value = EffectiveValue(requested, source, f"not used here: {why_unused(name, context)}")
        elif explanation.chosen is None:
            value = EffectiveValue(requested, source, "cannot run here")
        else:
            passed_over = [f"{v.backend} {v.reason}" for v in explanation.verdicts if not v.usable]
            source = "engine" if requested == AUTO else "profile"
            value = EffectiveValue(explanation.chosen.name, source, "; ".join(passed_over))
        found[f"backends.{name}"] = value
    return found


def why_unused(setting: str, context: Context) -> str:
    """Why nothing is chosen by a setting, for a model of which selection did not ask it."""
    engine = engine_named(context.engine)
    if context.left_to_engine:
        return f"{engine.title} has one backend of each kind on {context.place}"
    absent = [op.absent for op in OPS if op.setting == setting and op.of(engine.name)]
    return f"the model has no {absent[0]}" if absent else f"{engine.title} has no such layers"
