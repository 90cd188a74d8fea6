"""The host's cores and memory, as far as this process may use them: a container's limits count."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec
import psutil

_CGROUP = Path("/sys/fs/cgroup")
_CPUINFO = Path("/proc/cpuinfo")
# As the kernel calls the instructions: x86's two kinds, and ARM's.
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """The file system under one of our folders: `purpose` is "state" or "models". `free_bytes` is what this user may
    still write."""

    path: str
    total_bytes: int
    free_bytes: int
    purpose: str = ""
    read_only: bool = False


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine as far as this process may use it; the first four figures are within the container's limits.

    `memory_available_bytes` is what can be taken without swapping. `bfloat16`: the processor multiplies it, rather than
    to widen it first. `cpus` and `machine_memory_bytes` are the whole machine's; `cpu_quota` (in cores) and
    `memory_limit_bytes` what the cgroup, of version `cgroup`, leaves of them. `shm_bytes` is the size of /dev/shm.
    `open_files`, `processes` and `locked_memory_bytes` are the limits that hold (`ulimit -n`, `-u`, `-l`), and
    `open_files_hard` what the first may be raised to: None is no limit. `container` names what the process is confined
    by, None where by nothing. Any other None could not be read.
    """

    cores: int
    memory_bytes: int
    memory_available_bytes: int
    bfloat16: bool = False
    processor: str | None = None
    cpus: int | None = None
    cpu_quota: float | None = None
    machine_memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    cgroup: Literal["v1", "v2"] | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    disks: tuple[Disk, ...] = ()
    open_files: int | None = None
    open_files_hard: int | None = None
    processes: int | None = None
    locked_memory_bytes: int | None = None
    kernel: str | None = None
    system: str | None = None
    container: str | None = None


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
