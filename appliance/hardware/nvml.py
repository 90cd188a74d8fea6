"""NVIDIA's management library (nvidia-ml-py, whose module is `pynvml`), behind the few functions that are used.

The functions have the library's own names, so that the module itself is the interface and a test's stand-in is a
small class.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

import msgspec

from appliance.hardware.gpu import Gpu


class Nvml(Protocol):
    """The part of `pynvml` that is used. Every function may raise `NVMLError`."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...
    def nvmlSystemGetCudaDriverVersion(self) -> int: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...
    def nvmlDeviceGetName(self, handle: Any) -> str: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...
    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]: ...
    def nvmlDeviceGetMigMode(self, handle: Any) -> tuple[int, int]: ...
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int: ...
    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: int) -> Any: ...


class NvmlUnavailable(Exception):
    """The library or the driver does not answer. `unexpected`: it is there, so that a GPU was to be expected."""

    def __init__(self, message: str, *, unexpected: bool) -> None:
        super().__init__(message)
        self.unexpected = unexpected


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    gpus: tuple[Gpu, ...]
    driver_version: str
    cuda_version: str | None
    problem: str | None


def load_nvml() -> Nvml:
    try:
        return cast("Nvml", importlib.import_module("pynvml"))
    except ImportError as error:
        raise NvmlUnavailable(f"The library nvidia-ml-py is not installed ({error}).", unexpected=True) from error


def read_gpus(nvml: Nvml) -> Reading:
    """Every device that can run a model. One that cannot be read is left out and named in `problem`.

    Raises NvmlUnavailable when there is no driver, or it does not answer.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        absent = type(error).__name__ in ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded")
        raise NvmlUnavailable(f"The NVIDIA driver does not answer: {error}.", unexpected=not absent) from error
    try:
        gpus: list[Gpu] = []
        problems: list[str] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                gpus.extend(_devices(nvml, index))
            except nvml.NVMLError as error:  # for example "GPU is lost"
                problems.append(f"GPU {index} cannot be read: {error}.")
        return Reading(
            gpus=tuple(gpus),
            driver_version=_text(nvml.nvmlSystemGetDriverVersion()),
            cuda_version=_cuda_version(nvml),
            problem=" ".join(problems) or None,
        )
    except nvml.NVMLError as error:
        raise NvmlUnavailable(f"The NVIDIA driver does not answer: {error}.", unexpected=True) from error
    finally:
        nvml.nvmlShutdown()


def _devices(nvml: Nvml, index: int) -> list[Gpu]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    whole = _gpu(nvml, handle, index, (major, minor), None)
    if not _mig_enabled(nvml, handle):
        return [whole]
    slices = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError:  # no slice in this place: the numbers have gaps
            continue
        slices.append(_gpu(nvml, part, index, (major, minor), whole.uuid))
    return slices


def _gpu(nvml: Nvml, handle: Any, index: int, capability: tuple[int, int], parent: str | None) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(memory.total),
        memory_free_bytes=int(memory.free),
        compute_capability=capability,
        parent_uuid=parent,
    )


def _mig_enabled(nvml: Nvml, handle: Any) -> bool:
    try:
        return nvml.nvmlDeviceGetMigMode(handle)[0] == 1
    except nvml.NVMLError:  # a GPU without MIG answers "not supported"
        return False


def _cuda_version(nvml: Nvml) -> str | None:
    """The newest CUDA that the driver runs: 13000 -> "13.0"."""
    try:
        version = nvml.nvmlSystemGetCudaDriverVersion()
    except nvml.NVMLError:
        return None
    return f"{version // 1000}.{version % 1000 // 10}"


def _text(value: str | bytes) -> str:
    """Older versions of the library answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value
