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


# Kind of NvmlUnavailable -> what is told of it. Every message is followed by NONE_USABLE.
_DRIVER: Final = {
    "not-installed": _Row("nvml-missing", "{error}", "Install it beside Ingot.", "pip install nvidia-ml-py"),
    "mismatch": _Row(
        "driver-mismatch",
        "The NVIDIA driver was updated while it was in use: its library is of another version than its part in the "
        "kernel.{loaded}",
        "Restart the machine, so that the kernel loads the new driver.",
        "sudo reboot",
    ),
    "hangs": _Row(
        "driver-hangs",
        "{error} Programs that use a GPU may stand still as well.",
        "Look for Xid lines in the kernel's log; a GPU that failed so needs a restart of the machine.",
        "sudo dmesg | grep -i -e xid -e nvrm",
    ),
    "permission": _Row(
        "driver-permission",
        "This user may not open the device files of the NVIDIA driver.",
        "Give it access to them, on most systems by the group `video` or `render`; in a container, give it all of "
        "/dev/nvidia*, /dev/nvidiactl among them.",
        "ls -l /dev/nvidia*",
    ),
    "taken-away": _Row(
        "gpus-taken-away",
        "The NVIDIA driver answers this container with an unknown error, as it does once the container's access to its "
        "GPUs has been taken away: systemd does that when it reloads its units.",
        "Restart the container. That it happens again is prevented by Docker's cgroup driver `cgroupfs`, or by naming "
        "the device files in the container's settings.",
        "docker compose restart engine",
    ),
    "failed": _Row("driver-fails", "{error}", "The kernel's log says why.", "sudo dmesg | grep -i nvrm"),
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
    loaded = f" The kernel has loaded {signs.kernel_driver}." if signs.kernel_driver else ""
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
        f"There {_count(len(signs.pci))} in this machine, and no driver that answers. {NONE_USABLE}",
        Fix(
            text="Install NVIDIA's driver, or load it if it is installed: after an update of the kernel it must be "
            "built anew, and with Secure Boot its module must be signed.",
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
                f"There {_count(len(signs.pci))} in this machine, and the driver {reading.driver_version} drives "
                f"none. {NONE_USABLE}",
                Fix(
                    text="The kernel's log says why; a GPU newer than the driver needs a newer one, and Blackwell "
                    "the open kernel modules.",
                    command="sudo dmesg | grep -i nvrm",
                ),
                evidence=_addresses(signs),
            )


def _too_old(reading: Reading) -> Finding:
    return _problem(
        DRIVER_TOO_OLD,
        f"The NVIDIA driver {reading.driver_version or ''} runs CUDA up to {reading.cuda_version}, and every engine is "
        f"built for CUDA {OLDEST_CUDA} or newer: none runs on a GPU here.",
        Fix(
            text=f"Install driver {OLDEST_DRIVER[OLDEST_CUDA]} or newer on the machine (not in the container). Only a "
            "data-centre GPU can do without, by NVIDIA's packages for forward compatibility.",
            command="nvidia-smi",
        ),
        evidence=(COMPATIBILITY,),
    )


def _not_given(signs: Signs) -> Finding:
    said = "is not set" if signs.given is None else f"is {signs.given!r}"
    return _problem(
        "gpus-not-given",
        f"This machine has an NVIDIA driver, and none of its GPUs is given to this container ({GIVEN} {said}).",
        Fix(
            text="Give the container its GPUs, which NVIDIA's container toolkit does.",
            command="docker run --gpus all",
        ),
        evidence=(f"driver of the kernel: {signs.kernel_driver}", *_addresses(signs)),
    )


def _of_gpu(faulty: Faulty) -> Finding:
    name = f"GPU {faulty.index}" + (f" ({faulty.name})" if faulty.name else "")
    if faulty.kind == "no-slices":
        return _problem(
            "mig-without-slices",
            f"{name} is in MIG mode and has no slices: nothing can run on it.",
            Fix(
                text="Divide it into slices, such as one of half its size, or turn MIG off: "
                f"`nvidia-smi -i {faulty.index} -mig 0`.",
                command=f"sudo nvidia-smi mig -i {faulty.index} -lgip",
            ),
        )
    if faulty.kind == "no-memory":
        return _problem(
            "gpu-memory-unknown",
            f"{name} does not tell its memory: {faulty.why}. What fits into it cannot be planned.",
            Fix(text="Run as a user who may ask, or choose another device.", command="nvidia-smi -q -d MEMORY"),
        )
    return _problem(
        "gpu-unreadable",
        f"{name} cannot be read: {faulty.why}. It is not used.",
        Fix(
            text="Reset the GPU, or restart the machine; if it fails again, the board or its power is at fault.",
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
