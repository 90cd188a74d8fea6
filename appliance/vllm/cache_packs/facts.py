"""What compiled code depends on: the model, the software, the processor, and the settings that reach the compilers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from appliance.checkpoint.digest import checkpoint_digest
from appliance.checkpoint.errors import CheckpointError
from appliance.hardware.gpu import Gpu
from appliance.hardware.machine import Inventory
from appliance.redaction import variable_without_secrets, without_secrets
from appliance.vllm.command_line import MULTIPROCESSING, NOT_INHERITED, chosen_backends, flags, set_by_ingot
from appliance.vllm.installation import read_installation
from appliance.vllm.source import VllmSource

if TYPE_CHECKING:
    from appliance.vllm.plan import VllmPlan

# What compiles, or whose code is compiled, besides vLLM.
COMPILERS: Final = (
    "torch", "triton", "flashinfer-python", "deep-gemm", "tilelang", "nvidia-cutlass-dsl", "quack-kernels",
)  # fmt: skip
# Flags that no compiler sees: where the server listens and what it makes of answers, and how large the cache is.
HARMLESS_FLAGS: Final = frozenset({
    "uds", "served-model-name", "generation-config", "override-generation-config", "allowed-media-domains",
    "disable-uvicorn-access-log", "gpu-memory-utilization", "kv-cache-memory-bytes", "enable-prefix-caching",
    "enable-auto-tool-choice", "tool-call-parser", "reasoning-parser", "chat-template-content-format",
    "default-chat-template-kwargs", "max-log-len", "max-logprobs", "seed", "structured-outputs-config",
})  # fmt: skip
# Variables of the front door's own environment that vLLM, or one of its compilers, goes by.
INHERITED: Final = frozenset({"CC", "CXX", "CFLAGS", "CXXFLAGS", "CUDAFLAGS", "CUDA_HOME", "CUDA_PATH"})
INHERITED_PREFIXES: Final = ("VLLM_", "TORCH", "TRITON_", "FLASHINFER_", "DG_", "TILELANG_", "CUTE_DSL_", "NVCC_")
HARMLESS_VARIABLES: Final = (
    "NCCL_", "GLOO_", "RAY_", "VLLM_LOGGING_", "VLLM_LOG_", MULTIPROCESSING, "LANG", "MAX_JOBS",
    "CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF",
)  # fmt: skip

# Between kinds of GPUs where a launch takes unlike ones.
_AND: Final = " and "

# Longer values of settings are told apart by their hash.
_LONGEST: Final = 1000

# What a terminal shows as it is.
Text = Annotated[str, msgspec.Meta(max_length=8192, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`model` is the checkpoint's digest, `folder` its path and `installed` that of vLLM's package, since vLLM's own
    keys contain both; `versions` are by distribution, with Python's; `processor` names the GPUs, or the host's
    processor; `driver` is the GPU driver's branch, "580"; `settings` are flags and variables with their values as
    JSON, without secrets, or the hash of a long one."""

    model: Text
    folder: Text
    installed: Text
    versions: dict[Text, Text]
    processor: Text
    driver: Text = ""
    settings: dict[Text, Text] = {}

    @property
    def architecture(self) -> str:
        """Of the GPUs, as compilers name it; empty on a CPU."""
        return self.processor.rpartition(", ")[2] if self.driver else ""


def facts_of(plan: VllmPlan, source: VllmSource, inventory: Inventory, environ: Mapping[str, str]) -> Facts | None:
    """What a planned launch depends on, in milliseconds; None where the model's digest cannot be computed. `environ` is
    that of the front door, from which vLLM inherits."""
    try:
        digest = checkpoint_digest(plan.folder)
    except (CheckpointError, OSError):
        return None
    gpus = plan.taken
    return Facts(
        model=digest,
        folder=str(plan.folder),
        installed=str(source.folder or ""),
        versions=dict(_versions(plan, source)),
        processor=_gpus([_named(gpu) for gpu in gpus]) if gpus else _processor(inventory),
        driver=(inventory.driver_version or "").partition(".")[0] if gpus else "",
        settings=_settings(plan, source, environ),
    )


def differences(pack: Facts, launch: Facts) -> list[str]:
    """Why code compiled for `pack` is not what `launch` would compile, the weightiest first; empty where it is."""
    return list(_differences(pack, launch))


def foreign_to(pack: Facts, inventory: Inventory, vllm: str | None) -> list[str]:
    """Why no launch on this machine can use a pack, whatever the profile, as far as that can be told: from a container
    without its GPUs, or without a vLLM, it cannot. `vllm` is the version that is installed, where one is."""
    reasons = []
    kinds = dict.fromkeys(map(_named, inventory.gpus))
    if inventory.gpus and pack.driver:
        if not kinds.keys() >= _kinds(pack.processor):
            reasons.append(f"it is for {pack.processor}, and this machine has {' and '.join(kinds)}")
        driver = (inventory.driver_version or "").partition(".")[0]
        if driver and driver != pack.driver:
            reasons.append(f"it was made with driver {pack.driver}, and this machine has {driver}")
    made_with = pack.versions.get("vllm")
    if vllm is not None and made_with is not None and made_with != vllm:
        reasons.append(f"it was made with vllm {made_with}, and {_here('vllm', vllm)}")
    return reasons


def _differences(pack: Facts, launch: Facts) -> Iterator[str]:
    if pack.model != launch.model:
        yield "it is for another model"
    elif pack.folder != launch.folder:
        yield f"the model was at {pack.folder} and is at {launch.folder} here"
    if pack.installed != launch.installed:
        yield f"vLLM was at {pack.installed} and is at {launch.installed} here"
    if pack.processor != launch.processor:
        yield f"it is for {pack.processor}, and this is {launch.processor}"
    if pack.driver != launch.driver:
        yield f"it was made with driver {pack.driver or '(none)'}, and this machine has {launch.driver or 'none'}"
    for name, (there, here) in _changed(pack.versions, launch.versions):
        yield f"it was made {f'with {name} {there}' if there else f'without {name}'}, and {_here(name, here)}"
    for name, (there, here) in _changed(pack.settings, launch.settings):
        was = f"with {name} {there}" if there else f"without {name}"
        yield f"it was made {was}, and it is {here or 'not set'} here"


def _here(name: str, version: str) -> str:
    return f"{version} is installed" if version else f"{name} is not installed"


def _changed(pack: Mapping[str, str], launch: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    for name in sorted(pack.keys() | launch.keys()):
        if pack.get(name) != launch.get(name):
            yield name, (pack.get(name, ""), launch.get(name, ""))


def _versions(plan: VllmPlan, source: VllmSource) -> Iterator[tuple[str, str]]:
    packages = source.packages
    if (installation := read_installation(plan.program)) is not None:
        yield "vllm", installation.version
    for name in COMPILERS:
        if (version := packages.version(name)) is not None:
            yield name, version
    if packages.flashinfer_modules:  # what a pack made beside them does not hold
        yield "flashinfer modules", ", ".join(packages.flashinfer_modules)
    if packages.folders:
        yield "python", packages.folders[0].parent.name.removeprefix("python")


def _named(gpu: Gpu) -> str:
    return f"{gpu.name}, {gpu.architecture}"


def _gpus(names: list[str]) -> str:
    """How many there are of all kinds together, and the kinds in their order."""
    counted = f"{len(names)} x " if len(names) > 1 else ""
    return counted + _AND.join(dict.fromkeys(names))


def _kinds(processor: str) -> set[str]:
    """Those that `_gpus` has put into words."""
    return set(re.sub(r"^\d+ x ", "", processor).split(_AND))


def _processor(inventory: Inventory) -> str:
    """Code for CPUs is compiled for all that the processor can do."""
    host = inventory.host
    return f"{host.processor or 'an unknown processor'} ({' '.join(host.cpu_features or ())})"


def _settings(plan: VllmPlan, source: VllmSource, environ: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, Any] = {name: value for name, value in flags(plan).items() if name not in HARMLESS_FLAGS}
    variables = dict(_inherited(environ))
    for choice in chosen_backends(plan.effective):
        variables |= choice.environment
    variables |= plan.profile.vllm.environment
    harmless = source.variables_not_compiled
    found |= {
        name: variable_without_secrets(name, str(value))
        for name, value in variables.items()
        if name not in harmless and not name.startswith(HARMLESS_VARIABLES)
    }
    return {name: _as_fact(value) for name, value in sorted(found.items())}


def _as_fact(value: Any) -> str:
    text = without_secrets(json.dumps(value, sort_keys=True))
    return text if len(text) <= _LONGEST else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _inherited(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in environ.items():
        reaches = name in INHERITED or name.startswith(INHERITED_PREFIXES)
        if reaches and name not in NOT_INHERITED and not set_by_ingot(name):
            yield name, value
