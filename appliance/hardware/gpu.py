"""A GPU as NVIDIA's driver describes it, or one slice of a GPU that is divided."""

from __future__ import annotations

from typing import Literal

import msgspec

from appliance.profile.sizes import size_text

ComputeMode = Literal["shared", "exclusive", "prohibited"]


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds memory of a GPU. `name` is None where it belongs to another container, so that a process of
    that number here would be a different one; `memory_bytes` where the driver does not tell it."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None

    def __str__(self) -> str:
        return f"{self.name or 'a process of another container'} ({self.pid})"


class Refusal(msgspec.Struct, frozen=True):
    """A figure that the driver does not tell, as "power", and why, in its words."""

    figure: str
    why: str


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, or one MIG slice of it: then `parent_uuid` is the GPU's, and memory and name are the slice's.

    `index` is NVML's: the order on the PCI bus. `memory_kind` is "unified" where GPU and processor share their memory:
    size and free memory are then the host's. `mig_profile` is the slice's kind ("1g.10gb"), `gpu_instance` and
    `compute_instance` its numbers on its GPU. Power, temperature and utilisation of a slice are its GPU's.
    `compute_mode` says how many processes may compute on it: any, one, or none. A figure that the driver refuses is
    None (a memory 0), and `refused` says of it why.
    """

    uuid: str
    index: int
    name: str
    memory_bytes: int
    memory_free_bytes: int
    compute_capability: tuple[int, int]
    parent_uuid: str | None = None
    memory_kind: Literal["dedicated", "unified"] = "dedicated"
    mig_profile: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    pci_bus_id: str | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | None = None
    utilization_percent: int | None = None
    compute_mode: ComputeMode | None = None
    processes: tuple[GpuProcess, ...] = ()
    refused: tuple[Refusal, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({size_text(self.memory_bytes)}, {self.uuid})"

    @property
    def architecture(self) -> str:
        """As compilers name it: `sm_120`."""
        return "sm_{}{}".format(*self.compute_capability)
