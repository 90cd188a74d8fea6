"""Reads every GPU and slice through NVML, each figure by itself: one that the driver refuses is left out, and takes
neither the GPU nor the others with it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import structs

from appliance.hardware.gpu import ComputeMode, Gpu, Refusal
from appliance.hardware.known import is_unified
from appliance.hardware.nvml import Nvml, NvmlUnavailable, refusals, text
from appliance.hardware.processes import Seen, processes_of

T = TypeVar("T")

TEMPERATURE_OF_GPU: Final = 0  # NVML_TEMPERATURE_GPU
# NVML_COMPUTEMODE_DEFAULT, and so on; a missing or unknown mode forbids nothing.
COMPUTE_MODES: Final[dict[int | None, ComputeMode]] = {0: "shared", 1: "exclusive", 2: "prohibited", 3: "exclusive"}
NOT_SUPPORTED: Final = "NVMLError_NotSupported"
# Whatever else such a GPU still answers, no program can run on it.
_BROKEN: Final = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")
_MIG_NAME = re.compile(r"\bMIG (\S+)$")


class Faulty(msgspec.Struct, frozen=True):
    """A GPU that is there and cannot be used: `kind` is "unreadable", "no-memory" or "no-slices"."""

    index: int
    name: str
    kind: str
    why: str = ""


class Board(NamedTuple):
    whole: Gpu
    slices: list[Gpu]
    is_divided: bool


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """`gpus` can run a model; `divided` are those whose slices are among them, or that have none. The memory of
    unified ones is 0: it is the host's to tell."""

    gpus: tuple[Gpu, ...]
    divided: tuple[Gpu, ...]
    driver_version: str | None
    cuda_version: str | None
    faulty: tuple[Faulty, ...] = ()


def read_gpus(nvml: Nvml, sees: Seen) -> Reading:
    """Every device that can run a model. `sees` says of a process whether its number is one of ours.

    Raises NvmlUnavailable when there is no driver, or it does not answer.
    """
    refused = refusals(nvml)
    try:
        nvml.nvmlInit()
    except refused as error:
        raise _unavailable(error) from error
    try:
        return _Reader(nvml, sees).read()
    except refused as error:
        raise _unavailable(error) from error
    finally:
        with contextlib.suppress(*refused):
            nvml.nvmlShutdown()


def _unavailable(error: Exception) -> NvmlUnavailable:
    kind = {
        "NVMLError_LibraryNotFound": "no-driver",
        "NVMLError_DriverNotLoaded": "no-driver",
        "NVMLError_LibRmVersionMismatch": "mismatch",
        "NVMLError_NoPermission": "permission",
        "NVMLError_Unknown": "unknown",
    }.get(type(error).__name__, "failed")
    return NvmlUnavailable(f"The NVIDIA driver does not respond: {str(error).rstrip('.')}.", kind)


class _Reader:
    def __init__(self, nvml: Nvml, sees: Seen) -> None:
        self._nvml = nvml
        self._sees = sees
        self._refused = refusals(nvml)
        # Of a single figure also that the installed library has no such function.
        self._untold: tuple[type[Exception], ...] = (*self._refused, AttributeError)

    def read(self) -> Reading:
        nvml = self._nvml
        gpus: list[Gpu] = []
        divided: list[Gpu] = []
        faulty: list[Faulty] = []
        for board in map(self._board, range(nvml.nvmlDeviceGetCount())):
            if isinstance(board, Faulty):
                faulty.append(board)
                continue
            whole, slices, is_divided = board
            if is_divided:
                divided.append(whole)
                gpus += slices
                if not slices:
                    faulty.append(Faulty(whole.index, whole.name, "no-slices"))
            else:
                gpus.append(whole)
        for gpu in gpus:
            if why := next((refusal.why for refusal in gpu.refused if refusal.figure == "memory"), ""):
                faulty.append(Faulty(gpu.index, gpu.name, "no-memory", why))
        return Reading(
            gpus=tuple(gpus),
            divided=tuple(divided),
            driver_version=self._ask(lambda: text(nvml.nvmlSystemGetDriverVersion())),
            cuda_version=self._ask(lambda: _cuda_version(nvml.nvmlSystemGetCudaDriverVersion())),
            faulty=tuple(faulty),
        )

    def _board(self, index: int) -> Board | Faulty:
        try:
            return self._device(index)
        except self._refused as error:  # for example "GPU is lost"
            return Faulty(index, "", "unreadable", str(error).rstrip("."))

    def _device(self, index: int) -> Board:
        """Raises where even its UUID cannot be read."""
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        is_divided = (self._ask(lambda: nvml.nvmlDeviceGetMigMode(handle)) or (0, 0))[0] == 1
        whole = self._whole(handle, index, is_divided)
        if not is_divided:
            return Board(whole, [], False)
        slices = []
        for number in range(self._ask(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                slices.append(self._slice(part, handle, whole))
            except self._refused:  # no slice in this place, or none that this container was given: there are gaps
                continue
        return Board(whole, slices, True)

    def _whole(self, handle: Any, index: int, is_divided: bool) -> Gpu:
        nvml, missing = self._nvml, list[Refusal]()
        uuid = text(nvml.nvmlDeviceGetUUID(handle))
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        name = self._figure("name", missing, lambda: text(nvml.nvmlDeviceGetName(handle))) or "NVIDIA GPU"
        total, free, unified = self._memory(handle, name, missing, may_share=not is_divided)
        return Gpu(
            uuid=uuid,
            index=index,
            name=name,
            memory_bytes=total,
            memory_free_bytes=free,
            compute_capability=(major, minor),
            memory_kind="unified" if unified else "dedicated",
            pci_bus_id=self._figure("PCI address", missing, lambda: text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
            power_watts=_watts(self._figure("power", missing, lambda: nvml.nvmlDeviceGetPowerUsage(handle))),
            power_limit_watts=_watts(
                self._figure("power limit", missing, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
            ),
            temperature_celsius=self._figure(
                "temperature", missing, lambda: nvml.nvmlDeviceGetTemperature(handle, TEMPERATURE_OF_GPU)
            ),
            utilization_percent=self._figure(
                "utilisation", missing, lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            ),
            compute_mode=COMPUTE_MODES.get(self._ask(lambda: nvml.nvmlDeviceGetComputeMode(handle))),
            processes=self._processes(handle, missing),
            refused=tuple(missing),
        )

    def _slice(self, handle: Any, parent_handle: Any, parent: Gpu) -> Gpu:
        """Power, temperature and utilisation are the whole GPU's: NVML has none of a slice. Raises where the slice has
        no UUID to name it by."""
        nvml, missing = self._nvml, list[Refusal]()
        uuid = text(nvml.nvmlDeviceGetUUID(handle))
        name = self._figure("name", missing, lambda: text(nvml.nvmlDeviceGetName(handle)))
        profile = _MIG_NAME.search(name) if name else None
        total, free, _ = self._memory(handle, name or "", missing, may_share=False)
        gpu_instance = self._ask(lambda: nvml.nvmlDeviceGetGpuInstanceId(handle))
        compute_instance = self._ask(lambda: nvml.nvmlDeviceGetComputeInstanceId(handle))
        of_parent = [refusal for refusal in parent.refused if refusal.figure not in ("memory", "processes", "name")]
        seen = self._processes(handle, missing)
        if missing and missing[-1].figure == "processes":  # some drivers tell only the whole GPU's, by instance
            listed = self._ask(lambda: processes_of(nvml, parent_handle, self._sees, (gpu_instance, compute_instance)))
            if listed is not None:
                seen = listed
                missing.pop()
        return structs.replace(
            parent,
            uuid=uuid,
            name=name or f"{parent.name} MIG",
            memory_bytes=total,
            memory_free_bytes=free,
            parent_uuid=parent.uuid,
            mig_profile=profile[1] if profile else None,
            gpu_instance=gpu_instance,
            compute_instance=compute_instance,
            processes=seen,
            refused=(*missing, *of_parent),
        )

    def _memory(self, handle: Any, name: str, missing: list[Refusal], *, may_share: bool) -> tuple[int, int, bool]:
        """(size, free, unified). A GPU that shares the processor's memory has no figure for its own; some drivers give
        one all the same, which counts pages of files as taken."""
        if may_share and is_unified(name):
            return 0, 0, True
        try:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            return int(memory.total), int(memory.free), False
        except self._refused as error:
            if type(error).__name__ in _BROKEN:
                raise
            if may_share and type(error).__name__ == NOT_SUPPORTED:
                return 0, 0, True
            missing.append(Refusal("memory", str(error).rstrip(".")))
            return 0, 0, False

    def _processes(self, handle: Any, missing: list[Refusal]) -> tuple[Any, ...]:
        return self._figure("processes", missing, lambda: processes_of(self._nvml, handle, self._sees)) or ()

    def _figure(self, figure: str, missing: list[Refusal], ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except self._untold as error:
            if type(error).__name__ in _BROKEN:
                raise
            missing.append(Refusal(figure, str(error).rstrip(".")))
            return None

    def _ask(self, ask: Callable[[], T]) -> T | None:
        return self._figure("", [], ask)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _cuda_version(number: int) -> str:
    """13000 -> "13.0"."""
    return f"{number // 1000}.{number % 1000 // 10}"
