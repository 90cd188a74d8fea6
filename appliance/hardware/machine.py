"""What this machine has: GPUs and MIG slices, driver, and the host. Reading never fails: what is unknown is a
problem, in words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import structs

from appliance.hardware.gpu import Gpu
from appliance.hardware.host import Host, read_host
from appliance.hardware.nvml import Nvml, NvmlUnavailable, load_nvml
from appliance.hardware.patience import Patience
from appliance.hardware.problems import (
    DRIVER_VERSION,
    NONE_USABLE,
    PCI_DEVICES,
    Signs,
    driver_problem,
    gpu_problems,
    read_signs,
)
from appliance.hardware.processes import Seen, is_the_same
from appliance.hardware.reading import Reading, read_gpus
from appliance.hardware.replay import INGOT_HARDWARE, Recording, RecordingError, host_of, load_recording, replaying
from appliance.home import Home
from appliance.protocol import Finding, Fix, Severity


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

    @property
    def boards(self) -> tuple[tuple[Gpu, tuple[Gpu, ...]], ...]:
        """Whole GPUs in NVML's order, each with its slices; empty where it is not divided."""
        whole = sorted((*(gpu for gpu in self.gpus if gpu.parent_uuid is None), *self.divided), key=lambda g: g.index)
        return tuple((gpu, tuple(part for part in self.gpus if part.parent_uuid == gpu.uuid)) for gpu in whole)


def inventory(
    nvml: Nvml | None = None,
    *,
    pci_devices: Path = PCI_DEVICES,
    driver_version: Path = DRIVER_VERSION,
    home: Home | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Inventory:
    """Look now, or into the recording that INGOT_HARDWARE names. `home` names the folders whose disks are of interest;
    `nvml` stands in for NVIDIA's library in tests."""
    named = environ.get(INGOT_HARDWARE)
    if named and nvml is None:
        try:
            return replayed(Path(named), home=home)
        except RecordingError as error:
            wrong = Finding(
                id="hardware-recording",
                severity=Severity.WARNING,
                message=f"{INGOT_HARDWARE} is not a usable recording: {error} {NONE_USABLE}",
                field=INGOT_HARDWARE,
                value=named,
                fix=Fix(
                    text="Set it to a recording, or unset it to use this machine's hardware.",
                    command="unset INGOT_HARDWARE",
                ),
            )
            return _without_gpus(read_host(home), wrong)
    host = read_host(home)
    signs = read_signs(environ, host.container, pci_devices, driver_version)
    return _look(nvml, host, signs, is_the_same)


def replayed(path: Path, *, home: Home | None = None) -> Inventory:
    """What the machine that was recorded has. Raises RecordingError."""
    recording: Recording = load_recording(path)
    host = host_of(recording, read_host(home))
    signs = Signs(pci=recording.pci, kernel_driver=recording.kernel_driver, container=host.container)
    try:
        found = _look(replaying(recording), host, signs, lambda pid: True)
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # answers that NVML does not give
        raise RecordingError(f"{path} is not a hardware recording: its NVML part is invalid ({error}).") from error
    return structs.replace(found, replayed=str(path))


_patience: Patience[Reading] = Patience()


def _look(nvml: Nvml | None, host: Host, signs: Signs, sees: Seen) -> Inventory:
    try:
        library = nvml if nvml is not None else load_nvml()
        reading = _patience.call(lambda: read_gpus(library, sees))
    except NvmlUnavailable as error:
        return structs.replace(_without_gpus(host, driver_problem(error, signs)), kernel_driver=signs.kernel_driver)
    return _inventory(reading, host, tuple(gpu_problems(reading, signs)), signs)


def _inventory(reading: Reading, host: Host, problems: tuple[Finding, ...], signs: Signs) -> Inventory:
    return Inventory(
        gpus=tuple(_with_memory(gpu, host) for gpu in reading.gpus),
        driver_version=reading.driver_version,
        cuda_version=reading.cuda_version,
        host=host,
        problem=" ".join(problem.message for problem in problems) or None,
        divided=reading.divided,
        kernel_driver=signs.kernel_driver,
        problems=problems,
    )


def _without_gpus(host: Host, problem: Finding | None) -> Inventory:
    return Inventory(
        gpus=(),
        driver_version=None,
        cuda_version=None,
        host=host,
        problem=problem.message if problem else None,
        problems=(problem,) if problem else (),
    )


def _with_memory(gpu: Gpu, host: Host) -> Gpu:
    """A GPU that shares the processor's memory has what the host has, and free what the host could give."""
    if gpu.memory_kind == "dedicated":
        return gpu
    return structs.replace(gpu, memory_bytes=host.memory_bytes, memory_free_bytes=host.memory_available_bytes)
