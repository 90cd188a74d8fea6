"""What a launch of vLLM needs, resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.checkpoint.memory import MemoryPlan
from appliance.hardware.device import VISIBLE
from appliance.hardware.gpu import Gpu
from appliance.plan.launch import LaunchPlan
from appliance.vllm.cache_packs.facts import Facts
from appliance.vllm.cache_packs.pack import PackFolder
from appliance.vllm_program import Program

# Ways to start more processes than one engine's.
_PARALLEL: Final = ("data-parallel-size", "pipeline-parallel-size")


@dataclass(frozen=True, kw_only=True)
class VllmPlan(LaunchPlan):
    """vLLM covers more models than Ingot reads, and tells the sizes of those by itself. `gpus` are all that it takes on
    this host. `reads_uuids`: this vLLM finds them by UUID; older ones count them, as NVML does. `estimate` is what the
    model will take, as far as that is known beforehand. `pack` holds what this launch would otherwise compile, and
    `facts` are what that depends on; None where the model's digest cannot be computed. `needs_bytecode`: each of vLLM's
    processes would compile the Python that it imports, since nobody has and it may not write where that belongs."""

    program: Program
    gpus: tuple[Gpu, ...] = ()
    reads_uuids: bool = True
    estimate: MemoryPlan | None = None
    pack: PackFolder | None = None
    facts: Facts | None = None
    needs_bytecode: bool = False

    @property
    def taken(self) -> tuple[Gpu, ...]:
        return self.gpus or super().taken

    @property
    def memory(self) -> MemoryPlan | None:
        return self.estimate

    @property
    def environment(self) -> dict[str, str]:
        gpus = self.taken
        if not gpus or self.profile.ray.address is not None:  # Ray gives its workers their GPUs
            return {}
        names = [gpu.uuid if self.reads_uuids else str(gpu.index) for gpu in gpus]
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE: ",".join(names)}

    @property
    def may_fork(self) -> bool:
        """Whether the engine's process may be a copy of the server's, as vLLM allows and does not do by default. On one
        GPU, for models of text that Ingot knows: others start threads or use CUDA before, which no fork survives. (On a
        CPU vLLM always starts it anew.)"""
        arguments = self.profile.vllm.extra_args
        alone = len(self.taken) == 1 and self.profile.ray.address is None
        return alone and self.effective is not None and all(arguments.get(name, 1) == 1 for name in _PARALLEL)

    @property
    def max_model_len(self) -> int | None:
        if self.profile.max_model_len is not None:
            return self.profile.max_model_len
        return self.memory.max_model_len if self.memory else None

    @property
    def sealed(self) -> bool | None:
        return None if self.device.gpu is None else False
