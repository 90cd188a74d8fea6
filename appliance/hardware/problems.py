"""What is wrong with the GPUs of a machine, each with what to do: from what NVML answered or refused, and from what the
kernel shows of them whether it answers or not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from appliance.hardware.nvml import NvmlUnavailable
from appliance.hardware.reading import Faulty, Reading
from appliance.protocol import Finding, Fix, Severity

PCI_DEVICES = Path("/sys/bus/pci/devices")
DRIVER_VERSION = Path("/proc/driver/nvidia/version")
GIVEN: Final = "NVIDIA_VISIBLE_DEVICES"  # which GPUs NVIDIA's container runtime gives to a container
COMPATIBILITY: Final = "https://docs.nvidia.com/deploy/cuda-compatibility/"
# The oldest Linux driver of each major version of CUDA; newer minor versions of that CUDA run on it as well.
OLDEST_DRIVER: Final = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
OLDEST_CUDA: Final = 12  # the oldest that the engines' torch is built for
NONE_USABLE: Final = "No GPU can be used."
DRIVER_TOO_OLD: Final = "driver-too-old"
_NONE_GIVEN: Final = ("", "void", "none")


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen without NVML: addresses of NVIDIA's GPUs on the PCI bus, the driver that the kernel has loaded, who
    confines this process, and which GPUs its container was given."""

    pci: tuple[str, ...] = ()
    kernel_driver: str | None = None
    container: str | None = None
    given: str | None = None


def read_signs(
    environ: Mapping[str, str],
    container: str | None,
    pci_devices: Path = PCI_DEVICES,
    driver_version: Path = DRIVER_VERSION,
) -> Signs:
    return Signs(
        pci=_nvidia_gpus(pci_devices),
        kernel_driver=_kernel_driver(driver_version),
        container=container,
        given=environ.get(GIVEN),
    )


class _Row(NamedTuple):
    """A way in which the driver does not answer. `message` may hold `{error}`, what it said, and `{loaded}`, which
    driver the kernel has loaded."""

    id: str
    message: str
    fix: str
    command: str


# Kind of NvmlUnavailable -> its message. Every message is followed by NONE_USABLE.
_DRIVER: Final = {
    "not-installed": _Row("nvml-missing", "{error}", "Install it with Ingot.", "pip install nvidia-ml-py"),
    "mismatch": _Row(
        "driver-mismatch",
        "The NVIDIA driver was updated while in use: its library and its kernel module are different versions.{loaded}",
        "Restart the machine to load the new driver.",
        "sudo reboot",
    ),
    "hangs": _Row(
        "driver-hangs",
        "{error} Programs using a GPU may hang as well.",
        "Check the kernel log for Xid errors. A GPU that fails like this usually needs a reboot.",
        "sudo dmesg | grep -i -e xid -e nvrm",
    ),
    "permission": _Row(
        "driver-permission",
        "This user has no access to the NVIDIA device files.",
        "Add the user to the group `video` or `render`. In a container, pass in all of /dev/nvidia*, including "
        "/dev/nvidiactl.",
        "ls -l /dev/nvidia*",
    ),
    "taken-away": _Row(
        "gpus-taken-away",
        "The NVIDIA driver reports an unknown error: this container has lost access to its GPUs, as happens when "
        "systemd reloads its units.",
        "Restart the container. To prevent it, use Docker's cgroup driver `cgroupfs`, or list the device files in the "
        "container's settings.",
        "docker compose restart engine",
    ),
    "failed": _Row("driver-fails", "{error}", "The kernel log shows why.", "sudo dmesg | grep -i nvrm"),
}


def driver_problem(error: NvmlUnavailable, signs: Signs) -> Finding | None:
    """Why nothing can be known of GPUs. A machine without a GPU has no problem; nor has a container that was given none
    on purpose."""
    kind = error.kind
    if kind == "no-driver":
        return _no_driver(error, signs)
    if kind == "unknown":
        kind = "taken-away" if signs.container else "failed"
    row = _DRIVER[kind]
    loaded = f" The loaded kernel driver is {signs.kernel_driver}." if signs.kernel_driver else ""
    message = row.message.format(error=error, loaded=loaded)
    said = () if "{error}" in row.message else (str(error),)
    return _problem(row.id, f"{message} {NONE_USABLE}", Fix(text=row.fix, command=row.command), said)


def _no_driver(error: NvmlUnavailable, signs: Signs) -> Finding | None:
    if signs.container and signs.given in _NONE_GIVEN:
        return None
    if signs.container and signs.kernel_driver:
        return _not_given(signs)
    if not signs.pci:
        return None
    return _problem(
        "driver-missing",
        f"There {_count(len(signs.pci))} in this machine, but no working driver. {NONE_USABLE}",
        Fix(
            text="Install the NVIDIA driver, or load it if it is installed. After a kernel update it must be rebuilt; "
            "with Secure Boot its module must be signed.",
            command="sudo modprobe nvidia",
        ),
        evidence=(str(error), *_addresses(signs)),
    )


def gpu_problems(reading: Reading, signs: Signs) -> Iterator[Finding]:
    for faulty in reading.faulty:
        yield _of_gpu(faulty)
    if reading.gpus and 0 < int((reading.cuda_version or "0").partition(".")[0]) < OLDEST_CUDA:
        yield _too_old(reading)
    if not reading.gpus and not reading.faulty:
        if signs.container and signs.given in _NONE_GIVEN:
            return
        if signs.container and (signs.pci or signs.given):
            yield _not_given(signs)
        elif signs.pci:
            yield _problem(
                "gpus-not-driven",
                f"There {_count(len(signs.pci))} in this machine, but driver {reading.driver_version} found "
                f"none. {NONE_USABLE}",
                Fix(
                    text="The kernel log shows why. A GPU newer than the driver needs a newer driver; Blackwell needs "
                    "the open kernel modules.",
                    command="sudo dmesg | grep -i nvrm",
                ),
                evidence=_addresses(signs),
            )


def _too_old(reading: Reading) -> Finding:
    return _problem(
        DRIVER_TOO_OLD,
        f"NVIDIA driver {reading.driver_version or ''} supports CUDA up to {reading.cuda_version}. Every engine needs "
        f"CUDA {OLDEST_CUDA} or newer, so none can use a GPU here.",
        Fix(
            text=f"Install driver {OLDEST_DRIVER[OLDEST_CUDA]} or newer on the host (not in the container). Only "
            "data-centre GPUs can use NVIDIA's forward-compatibility packages instead.",
            command="nvidia-smi",
        ),
        evidence=(COMPATIBILITY,),
    )


def _not_given(signs: Signs) -> Finding:
    said = "is not set" if signs.given is None else f"is {signs.given!r}"
    return _problem(
        "gpus-not-given",
        f"This machine has an NVIDIA driver, but this container was given no GPU ({GIVEN} {said}).",
        Fix(
            text="Give the container its GPUs with the NVIDIA Container Toolkit.",
            command="docker run --gpus all",
        ),
        evidence=(f"kernel driver: {signs.kernel_driver}", *_addresses(signs)),
    )


def _of_gpu(faulty: Faulty) -> Finding:
    name = f"GPU {faulty.index}" + (f" ({faulty.name})" if faulty.name else "")
    if faulty.kind == "no-slices":
        return _problem(
            "mig-without-slices",
            f"{name} is in MIG mode without slices, so nothing can run on it.",
            Fix(
                text=f"Create slices, or turn MIG off: `nvidia-smi -i {faulty.index} -mig 0`.",
                command=f"sudo nvidia-smi mig -i {faulty.index} -lgip",
            ),
        )
    if faulty.kind == "no-memory":
        return _problem(
            "gpu-memory-unknown",
            f"{name} does not report its memory: {faulty.why}. Ingot cannot plan what fits.",
            Fix(text="Run as a user with access, or choose another device.", command="nvidia-smi -q -d MEMORY"),
        )
    return _problem(
        "gpu-unreadable",
        f"{name} cannot be queried: {faulty.why}. It is not used.",
        Fix(
            text="Reset the GPU or restart the machine. If it fails again, suspect the board or its power supply.",
            command=f"sudo nvidia-smi --gpu-reset -i {faulty.index}",
        ),
    )


def _problem(id: str, message: str, fix: Fix, evidence: tuple[str, ...] = ()) -> Finding:
    return Finding(id=id, severity=Severity.WARNING, message=message, fix=fix, evidence=evidence)


def _count(gpus: int) -> str:
    return "is an NVIDIA GPU" if gpus == 1 else f"are {gpus} NVIDIA GPUs"


def _addresses(signs: Signs) -> tuple[str, ...]:
    return (f"on the PCI bus: {', '.join(signs.pci)}",) if signs.pci else ()


def _nvidia_gpus(pci_devices: Path) -> tuple[str, ...]:
    """Addresses of display controllers (class 03) of NVIDIA (vendor 10de)."""
    try:
        return tuple(sorted(device.name for device in pci_devices.iterdir() if _is_nvidia_gpu(device)))
    except OSError:
        return ()


def _is_nvidia_gpu(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
    except OSError:
        return False
    return vendor.strip() == "0x10de" and kind.startswith("0x03")


def _kernel_driver(version: Path) -> str | None:
    try:
        found = re.search(r"Module .*?(\d+\.\d+(?:\.\d+)?)", version.read_text(errors="replace"))
    except OSError:
        return None
    return found[1] if found else None
