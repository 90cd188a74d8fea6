"""What this machine has: GPUs and MIG slices, driver, processor cores, memory. Reading never fails: what could not be
told is `problem`, in words."""

from __future__ import annotations

from pathlib import Path

import msgspec

from appliance.hardware.gpu import Gpu
from appliance.hardware.host import Host, read_host
from appliance.hardware.nvml import Nvml, NvmlUnavailable, load_nvml, read_gpus
from appliance.protocol import Finding

_PCI_DEVICES = Path("/sys/bus/pci/devices")


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """`gpus` are the devices that a model can run on: a GPU divided into MIG slices is represented by its slices, and
    is itself among `divided`. `cuda_version` is the newest CUDA that the driver runs; `kernel_driver` the version that
    the kernel has loaded, where that can be read. `problem` says in a sentence or two what is wrong, `problems` the
    same one by one, each with its fix. `replayed` names the recording that this was read from, if it was.
    """

    gpus: tuple[Gpu, ...]
    driver_version: str | None
    cuda_version: str | None
    host: Host
    problem: str | None
    divided: tuple[Gpu, ...] = ()
    kernel_driver: str | None = None
    problems: tuple[Finding, ...] = ()
    replayed: str | None = None


def inventory(nvml: Nvml | None = None, *, pci_devices: Path = _PCI_DEVICES) -> Inventory:
    """Look now. `nvml` stands in for NVIDIA's library in tests."""
    host = read_host()
    try:
        reading = read_gpus(nvml if nvml is not None else load_nvml())
    except NvmlUnavailable as error:
        # A machine without a GPU is no problem; a GPU that nothing answers for is one.
        problem = f"{error} No GPU can be used." if error.unexpected or _has_nvidia_gpu(pci_devices) else None
        return Inventory(gpus=(), driver_version=None, cuda_version=None, host=host, problem=problem)
    return Inventory(
        gpus=reading.gpus,
        driver_version=reading.driver_version,
        cuda_version=reading.cuda_version,
        host=host,
        problem=reading.problem,
    )


def _has_nvidia_gpu(pci_devices: Path) -> bool:
    """Whether a display controller (class 03) of NVIDIA (vendor 10de) is on the PCI bus."""
    try:
        return any(
            (device / "vendor").read_text().strip() == "0x10de" and (device / "class").read_text().startswith("0x03")
            for device in pci_devices.iterdir()
        )
    except OSError:
        return False
