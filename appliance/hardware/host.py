"""The host's cores and memory, as far as this process may use them: a container's limits count."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import psutil

_CGROUP = Path("/sys/fs/cgroup")
_CPUINFO = Path("/proc/cpuinfo")
# As the kernel calls the instructions: x86's two kinds, and ARM's.
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """`memory_available_bytes` is what can be taken without swapping, within the container's limit. `bfloat16`: the
    processor multiplies it, rather than to widen it first."""

    cores: int
    memory_bytes: int
    memory_available_bytes: int
    bfloat16: bool = False


def read_host(cgroup: Path = _CGROUP, cpuinfo: Path = _CPUINFO) -> Host:
    """`cgroup` is this process's cgroup (version 2): inside a container, the root of the mounted tree."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    limit = _number(cgroup / "memory.max")
    if limit is not None and limit < total:
        used = _number(cgroup / "memory.current") or 0
        reclaimable = _statistics(cgroup / "memory.stat").get("inactive_file", 0)
        total, available = limit, min(available, max(limit - used + reclaimable, 0))
    return Host(
        cores=_cores(cgroup),
        memory_bytes=total,
        memory_available_bytes=available,
        bfloat16=_multiplies_bfloat16(cpuinfo),
    )


def _cores(cgroup: Path) -> int:
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return max(1, min(cores, -(-int(quota) // int(period)))) if quota != "max" else cores
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup v2 here: only the affinity limits
        return cores


def _multiplies_bfloat16(cpuinfo: Path) -> bool:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    return any(not _BFLOAT16_FLAGS.isdisjoint(line.split()) for line in lines if line.startswith(("flags", "Features")))


def _number(path: Path) -> int | None:
    """The number in the file; None where there is no such file, or it says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _statistics(path: Path) -> dict[str, int]:
    try:
        pairs = [line.split() for line in path.read_text().splitlines()]
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    except (OSError, ValueError):
        return {}
