"""Figures of the hardware in words, the same on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Mapping

from appliance.hardware.gpu import Gpu, GpuProcess
from appliance.hardware.host import Host
from appliance.hardware.machine import Inventory
from appliance.hardware.visible import ORDER, VISIBLE, read_visible
from appliance.profile.sizes import size_text

# What a driver reserves of a GPU or a slice; more than this, held by no listed process, is reported.
_DRIVERS_OWN_SHARE = 0.01
_DRIVERS_OWN_BYTES = 1 << 30


def short_name(gpu: Gpu) -> str:
    return gpu.name.removeprefix("NVIDIA ")


def room(total: int, free: int) -> str:
    return f"{size_text(free)} free of {size_text(total)}"


def memory(gpu: Gpu) -> str:
    if not gpu.memory_bytes:
        return "unknown"
    used = gpu.memory_bytes - gpu.memory_free_bytes
    shared = ", shared with the processor" if gpu.memory_kind == "unified" else ""
    return f"{size_text(used)} of {size_text(gpu.memory_bytes)}{shared}"


def loaded(gpu: Gpu) -> str:
    return "" if gpu.utilization_percent is None else f"{gpu.utilization_percent}% busy"


def draws(gpu: Gpu) -> str:
    """`38 of 600 W, 34 °C`; unknown figures are left out."""
    parts = []
    if gpu.power_watts is not None:
        of = "" if gpu.power_limit_watts is None else f" of {gpu.power_limit_watts:.0f}"
        parts.append(f"{gpu.power_watts:.0f}{of} W")
    if gpu.temperature_celsius is not None:
        parts.append(f"{gpu.temperature_celsius} °C")
    return ", ".join(parts)


def holder(process: GpuProcess) -> str:
    """`3.5 GiB are held by python3 (process 1413)`."""
    held = "memory in use" if process.memory_bytes is None else f"{size_text(process.memory_bytes)} in use"
    if process.name is None:
        return f"{held} by process {process.pid}, outside this container"
    return f"{held} by {process.name} (process {process.pid})"


def unaccounted(gpu: Gpu, host: Host) -> str:
    """Where much of a device's memory is held by nobody who is named: that it is, and why that may be."""
    if gpu.memory_kind == "unified" or not gpu.memory_bytes:
        return ""
    named = sum(process.memory_bytes or 0 for process in gpu.processes)
    hidden = gpu.memory_bytes - gpu.memory_free_bytes - named
    if hidden <= max(_DRIVERS_OWN_BYTES, _DRIVERS_OWN_SHARE * gpu.memory_bytes):
        return ""
    if any(process.memory_bytes is None for process in gpu.processes):
        return ""
    if any(refusal.figure == "processes" for refusal in gpu.refused):
        return f"{size_text(hidden)} in use by programs the driver does not name"
    where = "outside this container" if host.container else "of another container, or by the driver itself"
    return f"{size_text(hidden)} in use by processes {where}"


def refusals(gpu: Gpu) -> str:
    """`not reported by the driver: power (not supported)`."""
    told = [f"{refusal.figure} ({refusal.why.lower()})" for refusal in gpu.refused]
    return f"not reported by the driver: {', '.join(told)}" if told else ""


def driver(found: Inventory) -> str:
    if found.driver_version is None:
        loaded = f"; loaded kernel driver {found.kernel_driver}" if found.kernel_driver else ""
        return f"not responding{loaded}" if loaded or found.problems else "none"
    runs = f", supports CUDA up to {found.cuda_version}" if found.cuda_version else ""
    apart = found.kernel_driver and found.kernel_driver != found.driver_version
    return f"{found.driver_version}{runs}" + (f"; loaded kernel driver {found.kernel_driver}" if apart else "")


def visible(found: Inventory, environ: Mapping[str, str]) -> str:
    """What CUDA_VISIBLE_DEVICES leaves, and what is wrong with it; empty where it is not set."""
    read = read_visible(environ.get(VISIBLE), found, environ.get(ORDER))
    if read.listed is None:
        return ""
    if read.gpus:
        left = ", ".join(gpu.uuid for gpu in read.gpus)
        leaves = f"{len(read.gpus)} of {len(found.gpus)} {'device' if len(found.gpus) == 1 else 'devices'} ({left})"
    else:
        leaves = "no device"
    whys = " ".join(entry.why for entry in read.problems)
    return f"{VISIBLE}={read.listed!r} leaves {leaves}" + (f". {whys}" if whys else "")


def cores(host: Host) -> str:
    count = f"{host.cores} {'core' if host.cores == 1 else 'cores'}"
    if host.cpus and host.cpus > host.cores:
        count += f" of the machine's {host.cpus}"
    if host.cpu_quota is not None:
        count += f" (a quota of {host.cpu_quota:g})"
    half = ", with bfloat16 instructions" if host.bfloat16 else ""
    return f"{count}{half}" + (f": {host.processor}" if host.processor else "")


def confinement(host: Host) -> str:
    """What a limit leaves of the machine's memory; empty where there is none."""
    if host.memory_limit_bytes is None:
        return ""
    machine = f" of the machine's {size_text(host.machine_memory_bytes)}" if host.machine_memory_bytes else ""
    group = f", cgroup {host.cgroup}" if host.cgroup else ""
    return f" (a limit{machine}{group})"


def limits(host: Host) -> str:
    files = _count(host.open_files)
    if host.open_files is not None and host.open_files != host.open_files_hard:
        files += f" (up to {_count(host.open_files_hard)})"
    locked = "any" if host.locked_memory_bytes is None else size_text(host.locked_memory_bytes)
    return f"{files} open files, {_count(host.processes)} processes, {locked} locked memory"


def _count(value: int | None) -> str:
    return "any number of" if value is None else f"{value:,}"
