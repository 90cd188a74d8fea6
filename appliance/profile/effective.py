"""Every effective value of a profile on this machine with this model, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from appliance.checkpoint.config import DTYPES, ModelConfig
from appliance.checkpoint.memory import MemoryLimits, MemoryPlan, plan_memory
from appliance.hardware.device import Device, select_device
from appliance.hardware.machine import Inventory
from appliance.profile.document import value_of
from appliance.profile.schema import SETTINGS, Profile
from appliance.profile.sizes import size_text
from kernels.catalogue import OPS
from kernels.selection import AUTO, BackendRefusedError, Choice, Context, choose

Source = Literal["default", "profile", "model", "gpu", "environment", "engine"]


class EffectiveValue(msgspec.Struct, frozen=True):
    """`why` says in words what the value follows from; empty where the source says all."""

    value: Any
    source: Source
    why: str = ""


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """`values` has one entry for each setting. `refusals` holds, by setting, backends that cannot run here."""

    values: Mapping[str, EffectiveValue]
    device: Device
    memory: MemoryPlan
    refusals: Mapping[str, BackendRefusedError]

    def __getitem__(self, key: str) -> EffectiveValue:
        return self.values[key]


def resolve(profile: Profile, *, config: ModelConfig, inventory: Inventory, environ: Mapping[str, str]) -> Effective:
    """Raises DeviceError when the profile names a device that is not there."""
    device = select_device(profile.device, inventory, environ)
    values = {setting.key: _as_given(profile, setting.key, setting.default) for setting in SETTINGS}
    if profile.served_model_name == profile.name:
        values["served-model-name"] = EffectiveValue(profile.name, "default", "the profile's name")
    values["device"] = EffectiveValue(device.name, device.source, device.why)
    if profile.dtype == "auto":
        values["dtype"] = _dtype(config, device)
    dtype: str = values["dtype"].value
    if profile.kv_cache_dtype == "auto":
        values["kv-cache-dtype"] = EffectiveValue(dtype, "default", "the same as dtype")
    if profile.engine == "native":
        values["enforce-eager"] = EffectiveValue(True, "engine", "the native engine takes no CUDA graphs yet")
    memory = plan_memory(
        config,
        MemoryLimits(
            dtype=dtype,
            kv_cache_dtype=values["kv-cache-dtype"].value,
            max_model_len=profile.max_model_len,
            max_num_seqs=profile.max_num_seqs,
            max_num_batched_tokens=profile.max_num_batched_tokens,
            block_size=profile.block_size,
            kv_cache_memory_bytes=profile.kv_cache_memory_bytes,
        ),
        device=device.kind,
        available_bytes=_available(profile, device, inventory),
    )
    if memory.shortened:
        why = f"the model's {config.context_length} do not fit into memory"
        values["max-model-len"] = EffectiveValue(memory.max_model_len, "engine", why)
    elif profile.max_model_len is None:
        values["max-model-len"] = EffectiveValue(memory.max_model_len, "model", "what the model was made for")
    if profile.kv_cache_memory_bytes is None:
        why = f"{memory.num_blocks} blocks of {size_text(memory.bytes_per_token * memory.block_size)}"
        values["kv-cache-memory-bytes"] = EffectiveValue(memory.cache_bytes, "engine", why)
    refusals = _choose_backends(profile, values, _context(config, device, dtype, values["enforce-eager"].value))
    return Effective(values=values, device=device, memory=memory, refusals=refusals)


def _as_given(profile: Profile, key: str, default: Any) -> EffectiveValue:
    value = value_of(profile, key)
    return EffectiveValue(value, "default" if value == default else "profile")


def _dtype(config: ModelConfig, device: Device) -> EffectiveValue:
    """On a CPU float32: half precision is slower there, and float32 is what the known answers were made with."""
    if device.gpu is None:
        return EffectiveValue("float32", "engine", "the fastest format on a CPU")
    if config.dtype not in DTYPES:
        return EffectiveValue("bfloat16", "engine", "the checkpoint does not name its format")
    if config.dtype == "bfloat16" and device.gpu.compute_capability < (8, 0):
        return EffectiveValue("float16", "gpu", f"{device.gpu.name} has no bfloat16")
    return EffectiveValue(config.dtype, "model", "the checkpoint's own")


def _available(profile: Profile, device: Device, inventory: Inventory) -> int:
    if device.gpu is None:
        return inventory.host.memory_available_bytes
    return min(int(device.gpu.memory_bytes * profile.gpu_memory_utilization), device.gpu.memory_free_bytes)


def _context(config: ModelConfig, device: Device, dtype: str, enforce_eager: bool) -> Context:
    return Context(
        device=device.kind,
        capability=device.gpu.compute_capability if device.gpu else None,
        dtype=dtype,
        head_dim=config.head_dim,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        cuda_graphs=not enforce_eager,
    )


def _choose_backends(
    profile: Profile, values: dict[str, EffectiveValue], context: Context
) -> dict[str, BackendRefusedError]:
    """Put each op's backend into `values`; returns what was refused."""
    refused = {}
    for op in OPS:
        if op.setting is None:
            continue
        key = f"backends.{op.setting}"
        requested = profile.backends[op.setting]
        try:
            choice = choose(op, context, requested)
        except BackendRefusedError as error:
            refused[key] = error
            continue
        source: Source = "engine" if requested == AUTO else "profile"
        values[key] = EffectiveValue(choice.backend.name, source, _why(choice))
    return refused


def _why(choice: Choice) -> str:
    passed_over = [f"{verdict.backend} {verdict.reason}" for verdict in choice.verdicts if not verdict.usable]
    return "; ".join(passed_over)
