"""Writes down what NVML and the host say of this machine, for `replay` to answer with elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from appliance.hardware.host import Host
from appliance.hardware.nvml import Nvml, refusals, text
from appliance.hardware.processes import running
from appliance.hardware.reading import TEMPERATURE_OF_GPU
from appliance.hardware.replay import Answers, NvmlRecording, Recording

# Functions of a device, without `nvmlDeviceGet`, and which fields of a structure that they return are kept.
_OF_DEVICE: Final[dict[str, tuple[str, ...]]] = {
    "UUID": (),
    "Name": (),
    "PciInfo": ("busId",),
    "CudaComputeCapability": (),
    "MemoryInfo": ("total", "free", "used"),
    "PowerUsage": (),
    "EnforcedPowerLimit": (),
    "UtilizationRates": ("gpu", "memory"),
    "ComputeMode": (),
    "MigMode": (),
    "ComputeRunningProcesses": ("pid", "usedGpuMemory", "gpuInstanceId", "computeInstanceId"),
    "GraphicsRunningProcesses": ("pid", "usedGpuMemory", "gpuInstanceId", "computeInstanceId"),
}
_PROCESSES: Final = "RunningProcesses"
_OF_SLICE: Final = ("UUID", "Name", "MemoryInfo", "ComputeRunningProcesses", "GraphicsRunningProcesses")


def record(nvml: Nvml, host: Host, *, about: str, pci: tuple[str, ...], kernel_driver: str | None) -> Recording:
    """Never fails: an error is recorded as one."""
    return Recording(
        about=about,
        nvml=_Recorder(nvml).record(),
        pci=pci,
        kernel_driver=kernel_driver,
        host=msgspec.to_builtins(host),
    )


class _Recorder:
    def __init__(self, nvml: Nvml) -> None:
        self._nvml: Any = nvml
        self._refused = refusals(nvml)

    def record(self) -> NvmlRecording:
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except self._refused as error:
            return NvmlRecording(init=_name(error))
        try:
            devices = [self._device(index) for index in range(nvml.nvmlDeviceGetCount())]
            return NvmlRecording(
                system={
                    "DriverVersion": self._ask(lambda: nvml.nvmlSystemGetDriverVersion()),
                    "CudaDriverVersion": self._ask(lambda: nvml.nvmlSystemGetCudaDriverVersion()),
                },
                devices=tuple(devices),
                process_names=self._names(devices),
            )
        except self._refused as error:
            return NvmlRecording(init=_name(error))
        finally:
            nvml.nvmlShutdown()

    def _device(self, index: int) -> Answers:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except self._refused as error:
            return {"error": _name(error)}
        found = {name: self._get(name, handle) for name in _OF_DEVICE}
        found["Temperature"] = self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, TEMPERATURE_OF_GPU))
        count = self._ask(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
        if isinstance(count, int) and count:
            found["slices"] = [self._slice(handle, number) for number in range(count)]
        return found

    def _slice(self, device: Any, number: int) -> Answers | None:
        try:
            handle = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, number)
        except self._refused:
            return None
        found = {name: self._get(name, handle) for name in _OF_SLICE}
        found["GpuInstanceId"] = self._ask(lambda: self._nvml.nvmlDeviceGetGpuInstanceId(handle))
        found["ComputeInstanceId"] = self._ask(lambda: self._nvml.nvmlDeviceGetComputeInstanceId(handle))
        return found

    def _names(self, devices: list[Answers]) -> dict[str, str]:
        places = [place for device in devices for place in (device, *(device.get("slices") or ())) if place]
        listed = [place.get(f"{kind}RunningProcesses", ()) for place in places for kind in ("Compute", "Graphics")]
        pids = {process["pid"] for processes in listed if isinstance(processes, list) for process in processes}
        asked = {str(pid): self._ask(partial(self._nvml.nvmlSystemGetProcessName, pid)) for pid in sorted(pids)}
        return {pid: name for pid, name in asked.items() if isinstance(name, str)}

    def _get(self, name: str, handle: Any) -> Any:
        fields = _OF_DEVICE[name]
        if name.endswith(_PROCESSES):
            return self._ask(lambda: _as_data(running(self._nvml, name.removesuffix(_PROCESSES), handle), fields))
        return self._ask(lambda: _as_data(getattr(self._nvml, f"nvmlDeviceGet{name}")(handle), fields))

    def _ask(self, ask: Callable[[], Any]) -> Any:
        try:
            answer = ask()
        except self._refused as error:
            return {"error": _name(error)}
        return text(answer) if isinstance(answer, bytes) else answer


def _name(error: Exception) -> str:
    return type(error).__name__.removeprefix("NVMLError_")


def _as_data(answer: Any, fields: tuple[str, ...]) -> Any:
    if isinstance(answer, list | tuple):
        return [_as_data(item, fields) for item in answer]
    if not fields:
        return answer
    kept = {field: getattr(answer, field, None) for field in fields}
    return {field: text(value) if isinstance(value, bytes) else value for field, value in kept.items()}
