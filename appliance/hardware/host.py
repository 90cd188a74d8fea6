"""The host's cores, memory, disks and limits, as far as this process may use them: a container's limits count."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from appliance.hardware.cgroup import read_cgroup, whole_cores
from appliance.hardware.container import PROC, container
from appliance.hardware.disks import SHM, Disk, read_disks, space
from appliance.hardware.processor import CPUINFO, read_processor
from appliance.home import Home


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine as far as this process may use it; the first four figures are within the container's limits.

    `memory_available_bytes` is what can be taken without swapping. `bfloat16`: the processor multiplies it, rather
    than to widen it first. `cpu_features` are its flags that backends ask for. `cpus` and `machine_memory_bytes` are
    the whole machine's; `cpu_quota` (in cores) and `memory_limit_bytes` what the cgroup, of version `cgroup`, leaves
    of them. `shm_bytes` is the size of /dev/shm. `open_files`, `processes` and `locked_memory_bytes` are the limits
    that hold (`ulimit -n`, `-u`, `-l`), and `open_files_hard` what the first may be raised to: None is no limit.
    `processes_left` is what the cgroups let be started beside what runs. `container` names what the process is
    confined by, None where by nothing. Any other None could not be read.
    """

    cores: int
    memory_bytes: int
    memory_available_bytes: int
    bfloat16: bool = False
    cpu_features: tuple[str, ...] | None = None
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
    processes_left: int | None = None
    locked_memory_bytes: int | None = None
    kernel: str | None = None
    system: str | None = None
    container: str | None = None


def read_host(home: Home | None = None, *, proc: Path = PROC, cpuinfo: Path = CPUINFO, shm: Path = SHM) -> Host:
    """Takes milliseconds and never raises. `home` names the folders whose disks are of interest: the environment's
    unless given."""
    memory = psutil.virtual_memory()
    group = read_cgroup(proc)
    limit = group.memory_limit_bytes
    confined = limit is not None and limit < memory.total
    total = limit if limit is not None and confined else memory.total
    left = group.memory_left_bytes if confined else None
    cpus = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0))
    processor = read_processor(cpuinfo)
    shm_size, shm_free, _ = space(shm) or (None, None, False)
    files, files_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Root may start as many as it likes, as far as this limit is concerned.
    started = None if os.geteuid() == 0 else _limit(resource.getrlimit(resource.RLIMIT_NPROC)[0])
    return Host(
        cores=whole_cores(allowed, group.cpu_quota),
        memory_bytes=total,
        memory_available_bytes=memory.available if left is None else min(memory.available, left),
        bfloat16=processor.bfloat16,
        cpu_features=processor.features,
        processor=processor.name,
        cpus=cpus,
        cpu_quota=group.cpu_quota,
        machine_memory_bytes=memory.total,
        memory_limit_bytes=limit if confined else None,
        cgroup=group.version,
        shm_bytes=shm_size,
        shm_free_bytes=shm_free,
        disks=read_disks(home or Home.from_environment()),
        open_files=_limit(files),
        open_files_hard=_limit(files_hard),
        processes=min((value for value in (started, group.max_processes) if value is not None), default=None),
        processes_left=group.processes_left,
        locked_memory_bytes=_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        kernel=platform.release() or None,
        system=_system(),
        container=container(os.environ, proc),
    )


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _system() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None
