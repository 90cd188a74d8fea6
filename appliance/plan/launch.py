"""What a launch needs, resolved: preflight makes the plan where no finding is an error, and the supervisor carries it
out. vLLM's is `appliance.vllm.plan`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from appliance.checkpoint.config import ModelConfig
from appliance.checkpoint.memory import CACHE_DTYPES, MemoryPlan
from appliance.checkpoint.safetensors import TensorIndex
from appliance.core_protocol import EngineConfig
from appliance.hardware.device import VISIBLE, Device
from appliance.hardware.gpu import Gpu
from appliance.hardware.machine import Inventory
from appliance.plan.effective import Effective
from appliance.profile.schema import Profile
from kernels.catalogue import graphs_hold_prefills
from kernels.selection import chosen_names, heaviest_names, names_by_place


@dataclass(frozen=True, kw_only=True)
class LaunchPlan(ABC):
    """What the plans of both engines have. `config` and `effective` are None where Ingot cannot read the model's."""

    profile: Profile
    folder: Path
    device: Device
    config: ModelConfig | None
    effective: Effective | None

    @property
    def taken(self) -> tuple[Gpu, ...]:
        """The GPUs that the engine runs on; none on a CPU."""
        return () if self.device.gpu is None else (self.device.gpu,)

    @property
    def ranks(self) -> int:
        """Processes of which each takes `memory`, of a GPU of its own where there are GPUs."""
        return 1

    @property
    def memory(self) -> MemoryPlan | None:
        """None where only the engine itself can tell."""
        return self.effective.memory if self.effective else None

    @property
    @abstractmethod
    def max_model_len(self) -> int | None:
        """None where only the engine itself can tell."""

    @property
    @abstractmethod
    def sealed(self) -> bool | None:
        """None where there is nothing to compile, as on the CPU; False where the engine may compile as it runs."""

    @property
    def environment(self) -> dict[str, str]:
        """What the engine's environment must say besides: its GPUs, by UUID, so that they are its first in this order
        whatever order CUDA counts in, and a MIG slice is found at all."""
        return {VISIBLE: ",".join(gpu.uuid for gpu in self.taken)} if self.taken else {}


@dataclass(frozen=True, kw_only=True)
class NativePlan(LaunchPlan):
    """`cast` is the folder that the engine is to be sealed to; None where it may compile."""

    config: ModelConfig
    effective: Effective
    index: TensorIndex
    cast: Path | None = None

    @property
    def taken(self) -> tuple[Gpu, ...]:
        return self.effective.gpus

    @property
    def ranks(self) -> int:
        return self.effective.ranks

    @property
    def memory(self) -> MemoryPlan:
        return self.effective.memory

    @property
    def max_model_len(self) -> int:
        return self.memory.max_model_len

    @property
    def sealed(self) -> bool | None:
        return None if self.device.gpu is None else self.cast is not None

    @property
    def dtype(self) -> str:
        dtype: str = self.effective["dtype"].value
        return dtype

    def engine_config(self) -> EngineConfig:
        profile, effective = self.profile, self.effective
        return EngineConfig(
            model_folder=str(self.folder),
            device="cpu" if self.device.gpu is None else "cuda:0",
            dtype=self.dtype,
            kv_cache_dtype=CACHE_DTYPES[effective["kv-cache-dtype"].value],
            index_key_dtype=profile.index_key_dtype,
            max_model_len=self.max_model_len,
            max_num_seqs=profile.max_num_seqs,
            max_num_batched_tokens=profile.max_num_batched_tokens,
            block_size=self.memory.block_size,
            num_blocks=self.memory.num_blocks,
            window_blocks=self.memory.window_blocks,
            num_snapshots=self.memory.num_snapshots,
            prefix_caching=profile.prefix_caching,
            enforce_eager=effective["enforce-eager"].value,
            prefill_graphs=graphs_hold_prefills(heaviest_names(effective.selection)),
            drafts=profile.speculative_config.method,
            num_speculative_tokens=profile.speculative_config.most,
            keep_fp8=effective.context.fp8_blocks is not None,
            backends=chosen_names(effective.selection),
            places=names_by_place(effective.selection),
            ranks=effective.ranks,
            environment=self.environment,
            cast=str(self.cast) if self.sealed else None,
        )


def inventory_after(inventory: Inventory, running: LaunchPlan | None) -> Inventory:
    """The machine as it will be when `running` has ended.

    Only what it has held since its start counts as given back: weights and cache (on a host too, since the engine
    writes zeros into its cache), graphs, and the fixed part of its workspace.
    """
    if running is None:
        return inventory
    memory, held = running.memory, running.device.gpu
    if memory is None:  # it may hold anything: no more is promised than what is free now
        return inventory
    if held is None:
        host = inventory.host
        free = min(host.memory_available_bytes + memory.kept_bytes * running.ranks, host.memory_bytes)
        return structs.replace(inventory, host=structs.replace(host, memory_available_bytes=free))
    freed = memory.kept_bytes
    taken = {gpu.uuid for gpu in running.taken}
    gpus = tuple(
        structs.replace(gpu, memory_free_bytes=min(gpu.memory_free_bytes + freed, gpu.memory_bytes))
        if gpu.uuid in taken
        else gpu
        for gpu in inventory.gpus
    )
    host = inventory.host
    if held.memory_kind == "unified":  # what it gives back is the host's as well
        free = min(host.memory_available_bytes + freed, host.memory_bytes)
        host = structs.replace(host, memory_available_bytes=free)
    return structs.replace(inventory, gpus=gpus, host=host)
