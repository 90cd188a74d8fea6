"""Answers in the place of NVML from a recording: a JSON file that holds what its functions returned on another machine,
so that the same reading runs over it. `record` writes such a file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal

import msgspec

from appliance.hardware.host import Host
from appliance.hardware.nvml import MISMATCHED, Nvml, load_nvml
from appliance.home import read_file

INGOT_HARDWARE = "INGOT_HARDWARE"  # names a recording that is read instead of this machine's GPUs

MAX_BYTES: Final = 16 << 20

Answers = dict[str, Any]


class NvmlRecording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`system` maps functions without `nvmlSystemGet` to what they returned; each device those without
    `nvmlDeviceGet`, and "slices" to its MIG slices in NVML's places, null where there is none. `{"error":
    "NotSupported"}` stands for the error of that name, and what is left out for that one. `init` is the error that
    `nvmlInit` raises."""

    init: str | None = None
    system: Answers = {}
    devices: tuple[Answers, ...] = ()
    process_names: dict[str, str] = {}


class Recording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`host` holds fields of `Host`, the rest of which are this machine's; `pci` the addresses of NVIDIA's GPUs on the
    bus; `kernel_driver` the version that the kernel has loaded."""

    about: str
    nvml: NvmlRecording
    format: Literal[1] = 1
    sources: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    kernel_driver: str | None = None
    host: Answers = {}


class RecordingError(ValueError):
    """The file is not a recording; the text says where it is wrong."""


def load_recording(path: Path) -> Recording:
    """Raises RecordingError."""
    try:
        recording = msgspec.json.decode(read_file(path, MAX_BYTES), type=Recording)
        msgspec.convert(_SOME_HOST | recording.host, Host)
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # MsgspecError is one, as is a NUL in the path, or a byte that is no text
        raise RecordingError(f"{path} is not a hardware recording: {error}.") from error
    unknown = set(recording.host) - set(Host.__struct_fields__)
    if unknown:
        raise RecordingError(f"{path} is not a hardware recording: unknown host fields {', '.join(sorted(unknown))}.")
    return recording


_SOME_HOST: Answers = {"cores": 1, "memory_bytes": 1, "memory_available_bytes": 1}


def host_of(recording: Recording, here: Host) -> Host:
    """The recorded host; what was not recorded of it is this machine's."""
    return msgspec.convert(msgspec.to_builtins(here) | recording.host, Host)


class Replay:
    """NVML as it answered when the recording was made."""

    def __init__(self, recording: NvmlRecording) -> None:
        self._recording = recording
        self._library = load_nvml()
        self.NVMLError = self._library.NVMLError
        self.NVMLLibraryMismatchError = getattr(self._library, MISMATCHED, self.NVMLError)

    def nvmlInit(self) -> None:
        if self._recording.init is not None:
            raise self._error(self._recording.init)

    def nvmlShutdown(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> Any:
        return self._answer(self._recording.system, "DriverVersion")

    def nvmlSystemGetCudaDriverVersion(self) -> Any:
        return self._answer(self._recording.system, "CudaDriverVersion")

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        if str(pid) not in self._recording.process_names:
            raise self._error("NotFound")
        return self._recording.process_names[str(pid)]

    def nvmlDeviceGetCount(self) -> int:
        return len(self._recording.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Answers:
        return self._there(self._recording.devices[index])

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Answers) -> int:
        return len(handle.get("slices", ()))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Answers, index: int) -> Answers:
        part: Answers | None = device["slices"][index]
        if part is None:
            raise self._error("NotFound")
        return self._there(part)

    def nvmlDeviceGetTemperature(self, handle: Answers, sensor: int) -> Any:
        return self._answer(handle, "Temperature")

    def __getattr__(self, function: str) -> Any:
        """The other functions of a device, all of which take its handle alone."""
        if not function.startswith("nvmlDeviceGet"):
            raise AttributeError(function)
        return lambda handle: self._answer(handle, function.removeprefix("nvmlDeviceGet"))

    def _there(self, device: Answers) -> Answers:
        if set(device) == {"error"}:
            raise self._error(device["error"])
        return device

    def _answer(self, answers: Answers, name: str) -> Any:
        answer = answers.get(name, {"error": "NotSupported"})
        if isinstance(answer, dict) and set(answer) == {"error"}:
            raise self._error(answer["error"])
        return _as_object(answer)

    def _error(self, name: str) -> Exception:
        """The library's own class for the error, so that it reads as it would there."""
        found = getattr(self._library, f"NVMLError_{name}", None) or getattr(self._library, name, None)
        error: Exception = found() if found else self.NVMLError(name)
        return error


def replaying(recording: Recording) -> Nvml:
    replay: Any = Replay(recording.nvml)
    nvml: Nvml = replay
    return nvml


def _as_object(answer: Any) -> Any:
    """As the library returns it: structures with attributes."""
    if isinstance(answer, dict):
        return SimpleNamespace(**answer)
    if isinstance(answer, list):
        return [_as_object(item) for item in answer]
    return answer
