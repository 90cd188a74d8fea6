"""What a preflight is about, and what it leads to: findings, and a plan where nothing stands against the launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from appliance.checkpoint.config import ModelConfig
from appliance.checkpoint.memory import CACHE_DTYPES, MemoryPlan
from appliance.checkpoint.safetensors import TensorIndex
from appliance.hardware.device import VISIBLE, Device
from appliance.hardware.machine import Inventory
from appliance.home import Home
from appliance.profile.effective import Effective
from appliance.profile.schema import Profile
from appliance.protocol import EngineConfig, Finding


@dataclass(frozen=True, kw_only=True)
class PreflightContext:
    """`listen` is the address that the front door is to take; None where that is not asked, since the front door that
    asks holds it. `running` is the launch that this one would replace: what it holds will be free by then."""

    home: Home
    document: Mapping[str, Any]
    environ: Mapping[str, str]
    inventory: Inventory
    listen: tuple[str, int] | None = None
    running: LaunchPlan | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """Everything that a launch of the native engine needs, resolved. `cast` is the folder that it is to be sealed to;
    None where it may compile."""

    profile: Profile
    effective: Effective
    folder: Path
    config: ModelConfig
    index: TensorIndex
    cast: Path | None = None

    @property
    def memory(self) -> MemoryPlan:
        return self.effective.memory

    @property
    def device(self) -> Device:
        return self.effective.device

    @property
    def sealed(self) -> bool | None:
        """None on the CPU, where there is nothing to seal."""
        return None if self.device.gpu is None else self.cast is not None

    @property
    def dtype(self) -> str:
        dtype: str = self.effective["dtype"].value
        return dtype

    @property
    def environment(self) -> dict[str, str]:
        """What the core's environment must say besides: the one GPU, by UUID, so that it is the core's `cuda:0`
        whatever order CUDA counts in, and a MIG slice is found at all."""
        return {} if self.device.gpu is None else {VISIBLE: self.device.gpu.uuid}

    def engine_config(self) -> EngineConfig:
        profile, effective = self.profile, self.effective
        return EngineConfig(
            model_folder=str(self.folder),
            device="cpu" if self.device.gpu is None else "cuda:0",
            dtype=self.dtype,
            kv_cache_dtype=CACHE_DTYPES[effective["kv-cache-dtype"].value],
            max_model_len=self.memory.max_model_len,
            max_num_seqs=profile.max_num_seqs,
            max_num_batched_tokens=profile.max_num_batched_tokens,
            block_size=profile.block_size,
            num_blocks=self.memory.num_blocks,
            prefix_caching=profile.prefix_caching,
            enforce_eager=effective["enforce-eager"].value,
            backends=dict(profile.backends),
            environment=self.environment,
            cast=str(self.cast) if self.sealed else None,
        )


def inventory_after(inventory: Inventory, running: LaunchPlan | None) -> Inventory:
    """The machine as it will be when `running` has ended.

    A GPU's weights and cache were allocated in full. On a host only the weights are counted: the system gives the
    cache's pages as they are first written, so that an unused cache is free memory already.
    """
    if running is None:
        return inventory
    memory, held = running.memory, running.device.gpu
    if held is None:
        host = inventory.host
        free = min(host.memory_available_bytes + memory.weight_bytes, host.memory_bytes)
        return structs.replace(inventory, host=structs.replace(host, memory_available_bytes=free))
    gpus = tuple(
        structs.replace(
            gpu,
            memory_free_bytes=min(gpu.memory_free_bytes + memory.weight_bytes + memory.cache_bytes, gpu.memory_bytes),
        )
        if gpu.uuid == held.uuid
        else gpu
        for gpu in inventory.gpus
    )
    return structs.replace(inventory, gpus=gpus)


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check as it went. `skipped` means that a check before it, on which it builds, found an error."""

    id: str
    title: str
    outcome: Literal["passed", "warning", "error", "skipped"]
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """`plan` is there only when no finding is an error."""

    findings: list[Finding]
    plan: LaunchPlan | None
    checks: list[CheckResult] = field(default_factory=list)
