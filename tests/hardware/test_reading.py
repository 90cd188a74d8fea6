"""What drivers refuse, and how much of the rest is still told."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from appliance.hardware import inventory
from appliance.hardware.container import numbers_are_the_machines
from appliance.hardware.nvml import NvmlUnavailable, load_nvml
from appliance.hardware.patience import Patience
from appliance.hardware.problems import Signs, driver_problem
from appliance.hardware.processes import is_the_same
from appliance.hardware.reading import read_gpus
from appliance.hardware.replay import NvmlRecording, Recording, load_recording, replaying
from tests.hardware.recorded import RECORDINGS, changed, machine_of

FIGURES = {
    "PowerUsage": ("power", "power_watts"),
    "EnforcedPowerLimit": ("power limit", "power_limit_watts"),
    "Temperature": ("temperature", "temperature_celsius"),
    "UtilizationRates": ("utilisation", "utilization_percent"),
    "PciInfo": ("PCI address", "pci_bus_id"),
}


@pytest.mark.parametrize("error", ["NotSupported", "NoPermission", "Unknown", "FunctionNotFound", "Timeout"])
@pytest.mark.parametrize("function", FIGURES)
def test_a_refused_figure_is_left_out_alone(function: str, error: str, tmp_path: Path) -> None:
    """All others are as they were, and why it is missing is kept."""

    def refuse(recording: dict[str, Any]) -> None:
        recording["nvml"]["devices"][0][function] = {"error": error}

    figure, field = FIGURES[function]
    (before,) = machine_of("rtx-pro-6000").gpus
    found = changed("rtx-pro-6000", tmp_path, refuse)
    (gpu,) = found.gpus
    assert getattr(gpu, field) is None
    assert [refusal.figure for refusal in gpu.refused] == [figure]
    same = [name for name in gpu.__struct_fields__ if name not in (field, "refused")]
    assert [getattr(gpu, name) for name in same] == [getattr(before, name) for name in same]
    assert found.problems == ()


@pytest.mark.parametrize("error", ["GpuIsLost", "ResetRequired"])
@pytest.mark.parametrize("function", ["UUID", "Temperature", "MemoryInfo", "ComputeRunningProcesses", "MigMode"])
def test_a_gpu_that_fails_while_it_is_read_is_not_used(function: str, error: str, tmp_path: Path) -> None:
    """Some figures of a GPU that hangs are still told: nothing can run on it all the same. The other one is there."""

    def fail(recording: dict[str, Any]) -> None:
        recording["nvml"]["devices"][1][function] = {"error": error}

    found = changed("rtx-pro-6000-x2", tmp_path, fail)
    expected = [gpu.uuid for gpu in machine_of("rtx-pro-6000-x2").gpus]
    assert [gpu.uuid for gpu in found.gpus] == expected[:1]
    assert [problem.id for problem in found.problems] == ["gpu-unreadable"]
    assert "GPU 1" in found.problem


def test_memory_that_is_refused_is_a_problem_and_keeps_the_gpu(tmp_path: Path) -> None:
    """What fits cannot be planned: so it is said. "Not supported" means that the memory is the host's."""

    def refuse(recording: dict[str, Any]) -> None:
        recording["nvml"]["devices"][0]["MemoryInfo"] = {"error": "NoPermission"}

    found = changed("rtx-pro-6000", tmp_path, refuse)
    assert [(gpu.memory_bytes, gpu.memory_kind) for gpu in found.gpus] == [(0, "dedicated")]
    assert [problem.id for problem in found.problems] == ["gpu-memory-unknown"]

    def unsupport(recording: dict[str, Any]) -> None:
        recording["nvml"]["devices"][0]["MemoryInfo"] = {"error": "NotSupported"}
        recording["nvml"]["devices"][0]["Name"] = "NVIDIA Thor"

    found = changed("rtx-pro-6000", tmp_path, unsupport)
    assert [(gpu.memory_bytes, gpu.memory_kind) for gpu in found.gpus] == [(found.host.memory_bytes, "unified")]


def test_a_gb10_whose_driver_does_tell_a_figure_is_unified_all_the_same(tmp_path: Path) -> None:
    """Some drivers count pages of files as taken there."""

    def tell(recording: dict[str, Any]) -> None:
        recording["nvml"]["devices"][0]["MemoryInfo"] = {"total": 128 << 30, "free": 1 << 30, "used": 127 << 30}

    (gpu,) = changed("dgx-spark", tmp_path, tell).gpus
    assert (gpu.memory_kind, gpu.memory_free_bytes) == ("unified", machine_of("dgx-spark").host.memory_available_bytes)


def test_a_slice_whose_processes_only_its_gpu_tells_has_its_own_of_them(tmp_path: Path) -> None:
    """By its instance: those of the slice beside it are not its."""

    def refuse(recording: dict[str, Any]) -> None:
        for part in recording["nvml"]["devices"][0]["slices"]:
            if part:
                part["ComputeRunningProcesses"] = {"error": "NotSupported"}

    found = changed("a100-mig", tmp_path, refuse)
    assert [[process.pid for process in gpu.processes] for gpu in found.gpus] == [[20317], [], [], []]
    assert "processes" not in {refusal.figure for gpu in found.gpus for refusal in gpu.refused}


def test_a_slice_without_a_name_is_its_gpus(tmp_path: Path) -> None:
    def refuse(recording: dict[str, Any]) -> None:
        recording["nvml"]["devices"][0]["slices"][1]["Name"] = {"error": "NotSupported"}
        recording["nvml"]["devices"][0]["slices"][2]["UUID"] = {"error": "NotSupported"}

    found = changed("a100-mig", tmp_path, refuse)
    assert [gpu.name for gpu in found.gpus][1] == "NVIDIA A100-SXM4-80GB MIG"
    assert len(found.gpus) == 3  # one without a UUID cannot be named to CUDA


def test_a_library_without_a_function_loses_that_figure_only() -> None:
    """Functions come and go with versions of nvidia-ml-py."""
    nvml: Any = replaying(load_recording(RECORDINGS / "rtx-pro-6000.json"))

    class Older:
        def __getattr__(self, name: str) -> Any:
            if name == "nvmlDeviceGetTemperature":
                raise AttributeError(name)
            return getattr(nvml, name)

    older: Any = Older()
    (gpu,) = read_gpus(older, lambda pid: True).gpus
    assert gpu.temperature_celsius is None
    assert gpu.power_watts is not None


def test_the_library_itself_answers_as_the_recordings_do() -> None:
    """The real `pynvml` on this machine, whatever that has: reading never raises, and takes less than 0.1 s."""
    inventory()
    started = time.process_time()
    found = inventory()
    assert time.process_time() - started < 0.1 * max(1, len(found.boards))
    assert found.host.cores >= 1
    assert hasattr(load_nvml(), "nvmlDeviceGetTemperature")


def test_a_driver_that_never_answers_is_not_waited_for() -> None:
    """It is said once the patience is over, and at once as long as the call that stands has not returned; then all is
    as before."""
    let_go = threading.Event()
    patience: Patience[str] = Patience(0.05)
    for _ in range(3):
        with pytest.raises(NvmlUnavailable, match=r"within 0\.05 s") as caught:
            patience.call(lambda: str(let_go.wait(30)))
        assert caught.value.kind == "hangs"
    assert [thread.name for thread in threading.enumerate()].count("nvml") == 1
    let_go.set()
    deadline = time.monotonic() + 10
    while "nvml" in [thread.name for thread in threading.enumerate()] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert patience.call(lambda: "there") == "there"
    with pytest.raises(ZeroDivisionError):
        patience.call(lambda: str(1 / 0))
    problem = driver_problem(caught.value, Signs(pci=("0000:01:00.0",)))
    assert problem.id == "driver-hangs"


def test_a_machine_without_a_driver(tmp_path: Path) -> None:
    """Without an NVIDIA card it is no problem; with one it is."""
    missing: Any = replaying(Recording(about="", nvml=NvmlRecording(init="LibraryNotFound")))
    absent = tmp_path / "none"
    assert inventory(missing, pci_devices=absent, driver_version=absent, environ={}).problem is None
    card = tmp_path / "0000:01:00.0"
    card.mkdir()
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    (tmp_path / "0000:02:00.0").mkdir()  # one that cannot be read
    with_card = inventory(missing, pci_devices=tmp_path, driver_version=absent, environ={})
    assert with_card.gpus == ()
    assert [problem.id for problem in with_card.problems] == ["driver-missing"]
    assert "0000:01:00.0" in " ".join(with_card.problems[0].evidence)


def test_the_driver_of_the_kernel_is_read(tmp_path: Path) -> None:
    """Both kinds of module write their version in their own way."""
    missing: Any = replaying(Recording(about="", nvml=NvmlRecording(init="LibRmVersionMismatch")))
    version = tmp_path / "version"
    for line in (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)\n",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Oct 14 16:23:15 UTC 2025\n",
    ):
        version.write_text(f"{line}GCC version:  gcc version 13.3.0\n")
        found = inventory(missing, pci_devices=tmp_path, driver_version=version, environ={})
        assert found.kernel_driver == "580.159.04"
        assert "580.159.04" in found.problem


@pytest.mark.parametrize(
    ("given", "expected"), [(None, ["gpus-not-given"]), ("all", ["gpus-not-given"]), ("void", []), ("none", [])]
)
def test_a_container_that_was_given_none_on_purpose_has_no_problem(given: str | None, expected: list[str]) -> None:
    """NVIDIA_VISIBLE_DEVICES says what its makers wanted."""
    signs = Signs(pci=("0000:01:00.0",), kernel_driver="580.95.05", container="Docker", given=given)
    problem = driver_problem(NvmlUnavailable("No library.", "no-driver"), signs)
    assert [problem.id] if problem else expected == []


def test_a_process_number_of_another_container_is_not_taken_for_ours(tmp_path: Path) -> None:
    """Inside a container a number counts only if that process here has one of NVIDIA's devices open."""
    own = tmp_path / "self" / "ns"
    own.mkdir(parents=True)
    (own / "pid").symlink_to("pid:[4026532281]")
    for pid, target in ((71, "/dev/nvidia0"), (72, "/dev/null")):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "fd" / "3").symlink_to(target)
    assert not numbers_are_the_machines(tmp_path)
    assert [is_the_same(pid, tmp_path) for pid in (71, 72, 73)] == [True, False, False]
    (own / "pid").unlink()
    (own / "pid").symlink_to("pid:[4026531836]")  # the machine's own
    assert [is_the_same(pid, tmp_path) for pid in (71, 72, 73)] == [True, True, True]
