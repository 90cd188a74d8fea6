"""What is read from each recorded machine: the real reading runs over what NVML answered there."""

from __future__ import annotations

import pytest

from appliance.hardware.device import select_device
from tests.hardware.recorded import GIB, RECORDINGS, machine_of

MIB = 1 << 20
# name -> (driver, CUDA, devices as (name's end, MiB, MiB free, architecture, kind of memory), whole GPUs divided)
MACHINES = {
    "none": (None, None, [], 0),
    "rtx-pro-6000": ("580.95.05", "13.0", [("Workstation Edition", 97887, 96681, "sm_120", "dedicated")], 0),
    "rtx-pro-6000-x2": (
        "580.95.05",
        "13.0",
        [
            ("Workstation Edition", 97887, 97873, "sm_120", "dedicated"),
            ("Workstation Edition", 97887, 23723, "sm_120", "dedicated"),
        ],
        0,
    ),
    "dgx-spark": ("580.173.02", "13.0", [("GB10", 124610, 96652, "sm_121", "unified")], 0),
    "a100-mig": (
        "550.163.01",
        "12.4",
        [
            ("MIG 3g.40gb", 40192, 5860, "sm_80", "dedicated"),
            ("MIG 2g.20gb", 19968, 19897, "sm_80", "dedicated"),
            ("MIG 1g.10gb", 9728, 9692, "sm_80", "dedicated"),
            ("MIG 1g.10gb", 9728, 9692, "sm_80", "dedicated"),
        ],
        1,
    ),
    "h100-mig-one-of-two": (
        "570.172.08",
        "12.8",
        [
            ("MIG 3g.40gb", 40448, 40404, "sm_90", "dedicated"),
            ("MIG 3g.40gb", 40448, 40404, "sm_90", "dedicated"),
            ("H100 80GB HBM3", 81559, 81555, "sm_90", "dedicated"),
        ],
        1,
    ),
    "h200-x8": (
        "580.159.04",
        "13.0",
        [("H200", 143771, 139553, "sm_90", "dedicated"), *[("H200", 143771, 143152, "sm_90", "dedicated")] * 7],
        0,
    ),
    "old-driver": ("470.57.02", "11.4", [("V100-SXM2-32GB", 32510, 30459, "sm_70", "dedicated")], 0),
    "nvml-missing": (None, None, [], 0),
    "not-given": (None, None, [], 0),
    "driver-mismatch": (None, None, [], 0),
    "no-permission": (None, None, [], 0),
    "gpus-taken-away": (None, None, [], 0),
    "gpu-lost": ("580.95.05", "13.0", [("Workstation Edition", 97887, 97873, "sm_120", "dedicated")], 0),
    "processes-refused": ("580.95.05", "13.0", [("Workstation Edition", 97887, 36667, "sm_120", "dedicated")], 0),
    "mig-in-container": ("535.183.01", "12.2", [("MIG 1g.10gb", 9984, 1112, "sm_90", "dedicated")], 1),
    "mig-without-slices": ("550.163.01", "12.4", [], 1),
}
# name -> (id of the problem, a part of what is said, a part of what to do)
PROBLEMS = {
    "nvml-missing": ("driver-missing", "NVIDIA GPU", "modprobe nvidia"),
    "not-given": ("gpus-not-given", "NVIDIA_VISIBLE_DEVICES is not set", "--gpus all"),
    "driver-mismatch": ("driver-mismatch", "550.54.14", "reboot"),
    "no-permission": ("driver-permission", "device files", "ls -l /dev/nvidia*"),
    "gpus-taken-away": ("gpus-taken-away", "systemd", "compose restart engine"),
    "gpu-lost": ("gpu-unreadable", "GPU is lost", "--gpu-reset -i 0"),
    "old-driver": ("driver-too-old", "470.57.02 supports CUDA up to 11.4", "driver 525.60.13 or newer"),
    "mig-without-slices": ("mig-without-slices", "GPU 0 (NVIDIA A100-SXM4-80GB)", "mig -i 0 -lgip"),
}


def test_every_recording_is_tested_here() -> None:
    assert {path.stem for path in RECORDINGS.glob("*.json")} == set(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_a_recorded_machine(name: str) -> None:
    """Each device with its own name and memory; and that it is a recording is said."""
    found = machine_of(name)
    driver, cuda, devices, divided = MACHINES[name]
    assert (found.driver_version, found.cuda_version, len(found.divided)) == (driver, cuda, divided)
    assert [
        (
            gpu.name[-len(end) :],
            gpu.memory_bytes // MIB,
            gpu.memory_free_bytes // MIB,
            gpu.architecture,
            gpu.memory_kind,
        )
        for gpu, (end, *_) in zip(found.gpus, devices, strict=True)
    ] == devices
    assert found.replayed == str(RECORDINGS / f"{name}.json")
    assert len({gpu.uuid for gpu in found.gpus}) == len(devices)


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_wrong_with_a_recorded_machine(name: str) -> None:
    """Each problem says what happened and ends in something to do; a sound machine has none."""
    found = machine_of(name)
    if name not in PROBLEMS:
        assert (found.problem, found.problems) == (None, ())
        return
    id, said, remedy = PROBLEMS[name]
    (problem,) = found.problems
    assert problem.id == id
    assert said in problem.message
    assert found.problem == problem.message
    assert remedy in f"{problem.fix.text} {problem.fix.command}"


def test_slices_are_grouped_under_their_gpu() -> None:
    """Power and heat of a slice are its GPU's; its processes are its own; a whole GPU beside it stands alone."""
    (whole, slices), *_ = machine_of("a100-mig").boards
    assert [part.mig_profile for part in slices] == ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]
    assert {part.parent_uuid for part in slices} == {whole.uuid}
    assert [(part.gpu_instance, part.compute_instance) for part in slices] == [(1, 0), (5, 0), (13, 0), (14, 0)]
    assert {(part.power_watts, part.temperature_celsius) for part in slices} == {(91.24, 41)}
    assert [[process.pid for process in part.processes] for part in slices] == [[20317], [], [], []]
    (divided, two), (alone, none) = machine_of("h100-mig-one-of-two").boards
    assert (divided.index, len(two), alone.index, none) == (0, 2, 1, ())


def test_unified_memory_is_the_hosts() -> None:
    """A DGX Spark's GPU has what the host has, and free what the host could give; its processes' memory is reported."""
    spark = machine_of("dgx-spark")
    (gpu,) = spark.gpus
    assert (gpu.memory_bytes, gpu.memory_free_bytes) == (spark.host.memory_bytes, spark.host.memory_available_bytes)
    assert gpu.memory_bytes // GIB == 121
    assert [(process.name, process.memory_bytes // MIB) for process in gpu.processes] == [
        ("/usr/local/bin/python", 19135),
        ("/usr/lib/xorg/Xorg", 143),
    ]
    assert [refusal.figure for refusal in gpu.refused] == ["power limit"]


def test_processes_are_named_where_they_can_be_seen() -> None:
    """The largest first, those that draw too; one of another container keeps its memory and has no name; where the
    driver refuses, that is said."""
    (gpu,) = machine_of("rtx-pro-6000").gpus
    assert [process.name for process in gpu.processes] == ["python3", "/usr/lib/xorg/Xorg", "/usr/bin/gnome-shell"]
    (part,) = machine_of("mig-in-container").gpus
    assert [(process.pid, process.name, process.memory_bytes // MIB) for process in part.processes] == [
        (71, None, 8812)
    ]
    (gpu,) = machine_of("processes-refused").gpus
    assert gpu.processes == ()
    assert [(refusal.figure, refusal.why) for refusal in gpu.refused] == [("processes", "Insufficient Permissions")]
    (gpu,) = machine_of("old-driver").gpus  # which knows only older functions
    assert [process.pid for process in gpu.processes] == [9021]


def test_a_container_with_one_slice_has_that_slice() -> None:
    """What the rest of the GPU refuses does not lose the slice, and is no problem of this container's."""
    found = machine_of("mig-in-container")
    (whole,) = found.divided
    assert (whole.memory_bytes, whole.power_watts, whole.temperature_celsius) == (0, None, 30)
    assert {refusal.figure for refusal in whole.refused} == {"memory", "power", "utilisation", "processes"}
    assert (found.host.cores, found.host.memory_limit_bytes, found.host.container) == (8, 64 * GIB, "Kubernetes")


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("none", "cpu"),
        ("rtx-pro-6000-x2", "GPU-5a1c7e02-9d3b-4f86-b1a7-20c4e8d6f913"),
        ("a100-mig", "MIG-7c9d2e51-88a4-5f02-b6e1-04f8a9c3d722"),
        ("h100-mig-one-of-two", "GPU-b6714f08-2ad9-13c5-77f0-48e5d92c61ab"),
        ("h200-x8", "GPU-43d7845a-4d37-af11-2032-f8e12ad2baf3"),
        ("dgx-spark", "GPU-2dee1e25-b3b5-007e-2b55-79f2d0f2ebe5"),
        ("mig-without-slices", "cpu"),
    ],
)
def test_auto_takes_the_device_with_the_most_free_memory(name: str, chosen: str) -> None:
    assert select_device("auto", machine_of(name), {}).name == chosen
