"""Which processes hold memory of a GPU. NVML's numbers are those of the machine, which a container may not share: a
number that cannot be vouched for keeps its memory and loses its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.hardware.container import PROC, numbers_are_the_machines
from appliance.hardware.gpu import GpuProcess
from appliance.hardware.nvml import Nvml, refusals, text

Seen = Callable[[int], bool]
"""Whether the process of this number, here, is the one that NVML means."""


def processes_of(
    nvml: Nvml, handle: Any, sees: Seen, instance: tuple[int | None, int | None] | None = None
) -> tuple[GpuProcess, ...]:
    """Those that hold memory of the device, the largest first. `instance` keeps those of one slice, given its numbers.

    Raises NVMLError where the driver does not tell.
    """
    refused = refusals(nvml)
    listed = running(nvml, "Compute", handle)
    with contextlib.suppress(*refused):  # devices without graphics refuse it
        listed += running(nvml, "Graphics", handle)
    found: dict[int, int | None] = {}
    for process in listed:
        if instance and instance != (process.gpuInstanceId, process.computeInstanceId):
            continue
        used = getattr(process, "usedGpuMemory", None)
        known = found.get(process.pid)
        found[process.pid] = used if known is None else max(known, used or 0)  # one that draws too is listed twice
    processes = [GpuProcess(pid=pid, name=_name(nvml, pid, sees), memory_bytes=used) for pid, used in found.items()]
    return tuple(sorted(processes, key=lambda process: (-(process.memory_bytes or 0), process.pid)))


def running(nvml: Nvml, kind: str, handle: Any) -> list[Any]:
    """As NVML lists them. Drivers before 510 know only the second version of the function."""
    function = f"nvmlDeviceGet{kind}RunningProcesses"
    try:
        return list(getattr(nvml, function)(handle))
    except refusals(nvml)[1:]:
        return list(getattr(nvml, f"{function}_v2")(handle))


def _name(nvml: Nvml, pid: int, sees: Seen) -> str | None:
    if not sees(pid):
        return None
    try:
        return text(nvml.nvmlSystemGetProcessName(pid)) or None
    except refusals(nvml):  # it has ended, or is another user's
        return None


def is_the_same(pid: int, proc: Path = PROC) -> bool:
    """Whether `pid` means the same process to us as to the driver: it does outside of containers; inside, if that
    process has one of NVIDIA's device files open."""
    if numbers_are_the_machines(proc):
        return True
    try:
        return any(_target(link).startswith("/dev/nvidia") for link in (proc / str(pid) / "fd").iterdir())
    except OSError:
        return False


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed meanwhile
        return ""
