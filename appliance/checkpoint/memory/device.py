"""The memory that a plan divides: how much there is, who else holds some of it, and what is left to the engine."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from appliance.checkpoint.memory.formats import MIB
from appliance.hardware.gpu import Gpu
from appliance.hardware.host import Host

# Left to a host's other programs, and to what the C library's heap grows by under requests of many different lengths.
HOST_RESERVE: Final = 256 * MIB
HOST_RESERVE_SHARE: Final = 0.05  # of a small host


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Another program with memory of the device. `bytes` is None where the driver does not tell."""

    name: str
    bytes: int | None = None


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is "host", "dedicated" (a GPU's own, or a MIG slice's) or "unified" (a GPU's that is the host's). What the
    system may reclaim at once, as its cache of files, counts as free. `share` is what the engine may take of `total`;
    vLLM takes it whatever is free, and refuses to start where that is less. `reserve` stays free whatever the share."""

    kind: Literal["host", "dedicated", "unified"]
    total: int
    free: int
    share: float = 1.0
    reserve: int = 0
    holders: tuple[Holder, ...] = ()

    @property
    def held(self) -> int:
        return max(self.total - self.free, 0)

    @property
    def available(self) -> int:
        return max(min(int(self.total * self.share), self.free - self.reserve), 0)


def host_memory(host: Host, share: float = 1.0) -> DeviceMemory:
    total, free = host.memory_bytes, host.memory_available_bytes
    return DeviceMemory(kind="host", total=total, free=free, share=share, reserve=_reserve(total))


def gpu_memory(gpu: Gpu, share: float) -> DeviceMemory:
    holders = tuple(Holder(name=str(process), bytes=process.memory_bytes) for process in gpu.processes)
    return DeviceMemory(
        kind=gpu.memory_kind,
        total=gpu.memory_bytes,
        free=gpu.memory_free_bytes,
        share=share,
        reserve=_reserve(gpu.memory_bytes) if gpu.memory_kind == "unified" else 0,
        holders=holders,
    )


def _reserve(host_bytes: int) -> int:
    return min(HOST_RESERVE, int(host_bytes * HOST_RESERVE_SHARE))
