"""The machine's inventory: GPUs, slices, limits of a container, and which device a profile means."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from appliance.hardware import Gpu, Host, Inventory, inventory
from appliance.hardware.device import DeviceError, select_device, visible_gpus
from appliance.hardware.host import read_host

GIB = 1 << 30
UUIDS = [f"GPU-{n}2345678-1234-1234-1234-123456789abc" for n in range(3)]
MIG = "MIG-a2345678-1234-1234-1234-123456789abc"


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


@dataclass
class FakeDevice:
    uuid: str
    name: str = "NVIDIA Test"
    total: int = 80 * GIB
    free: int = 79 * GIB
    capability: tuple[int, int] = (9, 0)
    slices: list[FakeDevice | None] = field(default_factory=list)
    lost: bool = False


@dataclass
class FakeNvml:
    """What `pynvml` offers, over plain data."""

    devices: list[FakeDevice]
    init_error: NVMLError | None = None
    NVMLError: type[Exception] = NVMLError

    def nvmlInit(self) -> None:
        if self.init_error:
            raise self.init_error

    def nvmlShutdown(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> Any:
        return b"580.65.06"  # as old versions of the library answer

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeDevice:
        if self.devices[index].lost:
            raise NVMLError("GPU is lost")
        return self.devices[index]

    def nvmlDeviceGetUUID(self, handle: FakeDevice) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeDevice) -> str:
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: FakeDevice) -> FakeDevice:
        return handle

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeDevice) -> tuple[int, int]:
        return handle.capability

    def nvmlDeviceGetMigMode(self, handle: FakeDevice) -> tuple[int, int]:
        if not handle.slices:
            raise NVMLError("Not Supported")
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeDevice) -> int:
        return len(handle.slices)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: FakeDevice, index: int) -> FakeDevice:
        part = device.slices[index]
        if part is None:
            raise NVMLError("Not Found")
        return part


def machine(*gpus: Gpu, problem: str | None = None) -> Inventory:
    host = Host(cores=8, memory_bytes=64 * GIB, memory_available_bytes=60 * GIB)
    return Inventory(gpus=gpus, driver_version="580", cuda_version="13.0", host=host, problem=problem)


def gpu(number: int, free: int = 70 * GIB, **changes: Any) -> Gpu:
    values: dict[str, Any] = {
        "uuid": UUIDS[number], "index": number, "name": f"Card {number}", "memory_bytes": 80 * GIB,
        "memory_free_bytes": free, "compute_capability": (9, 0), "parent_uuid": None,
    }  # fmt: skip
    return Gpu(**values | changes)


def test_gpus_are_read() -> None:
    """Name, memory, capability, versions."""
    found = inventory(FakeNvml([FakeDevice(UUIDS[0]), FakeDevice(UUIDS[1], capability=(8, 6))]))
    assert [(g.uuid, g.index, g.compute_capability) for g in found.gpus] == [
        (UUIDS[0], 0, (9, 0)),
        (UUIDS[1], 1, (8, 6)),
    ]
    assert (found.driver_version, found.cuda_version, found.problem) == ("580.65.06", "13.0", None)
    assert found.gpus[0].memory_bytes == 80 * GIB
    assert found.host.cores >= 1


def test_a_divided_gpu_is_its_slices() -> None:
    """A GPU in MIG mode cannot run anything as a whole; memory and name are the slice's."""
    part = FakeDevice(MIG, name="NVIDIA Test MIG 1g.10gb", total=10 * GIB, free=9 * GIB)
    found = inventory(FakeNvml([FakeDevice(UUIDS[0], slices=[None, part, None]), FakeDevice(UUIDS[1])]))
    assert [g.uuid for g in found.gpus] == [MIG, UUIDS[1]]
    assert found.gpus[0].parent_uuid == UUIDS[0]
    assert found.gpus[0].memory_bytes == 10 * GIB


def test_a_lost_gpu_leaves_the_others() -> None:
    """It is named in `problem`."""
    found = inventory(FakeNvml([FakeDevice(UUIDS[0], lost=True), FakeDevice(UUIDS[1])]))
    assert [g.uuid for g in found.gpus] == [UUIDS[1]]
    assert found.problem
    assert "GPU 0" in found.problem


def test_a_machine_without_a_driver(tmp_path: Path) -> None:
    """Without an NVIDIA card it is no problem; with one it is; so is a driver that answers with an error."""
    absent = FakeNvml([], init_error=NVMLError_LibraryNotFound("not found"))
    assert inventory(absent, pci_devices=tmp_path / "none").problem is None
    card = tmp_path / "0000:01:00.0"
    card.mkdir()
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    with_card = inventory(absent, pci_devices=tmp_path)
    assert with_card.gpus == ()
    assert with_card.problem
    broken = inventory(
        FakeNvml([], init_error=NVMLError("Driver/library version mismatch")), pci_devices=tmp_path / "none"
    )
    assert "mismatch" in (broken.problem or "")


def test_the_limits_of_a_container_count(tmp_path: Path) -> None:
    """Memory and cores are the cgroup's where it has limits; page cache that can be dropped is available."""
    free = read_host(tmp_path)
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB // 2}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {GIB // 4}\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    limited = read_host(tmp_path)
    assert limited.memory_bytes == GIB
    assert limited.memory_available_bytes == 3 * GIB // 4
    assert limited.cores == 1
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert read_host(tmp_path).memory_bytes == free.memory_bytes
    assert read_host(tmp_path).cores == free.cores


def test_a_processor_that_multiplies_bfloat16_is_known_by_its_flags(tmp_path):
    """x86's or ARM's; one without the flag, and a system without the file, have none."""
    cpuinfo = tmp_path / "cpuinfo"
    assert not read_host(cpuinfo=cpuinfo).bfloat16
    for line, has in (
        ("flags\t\t: fpu avx512f avx512_bf16 sse", True),
        ("flags\t\t: fpu amx_bf16", True),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("flags\t\t: fpu avx512f avx2", False),
        ("bugs\t\t: bf16", False),
    ):
        cpuinfo.write_text(f"processor\t: 0\n{line}\n")
        assert read_host(cpuinfo=cpuinfo).bfloat16 is has


def test_auto_takes_the_gpu_with_the_most_free_memory() -> None:
    """Or the CPU where there is none; `why` says it."""
    chosen = select_device("auto", machine(gpu(0, 10 * GIB), gpu(1, 70 * GIB)), {})
    assert chosen.name == UUIDS[1]
    assert chosen.kind == "cuda"
    nothing = select_device("auto", machine(), {})
    assert (nothing.kind, nothing.name, nothing.why) == ("cpu", "cpu", "this machine has no GPU")
    assert select_device("auto", machine(problem="GPU 0 is lost."), {}).why == "GPU 0 is lost."
    assert select_device("cpu", machine(gpu(0)), {}).gpu is None


def test_a_named_device_is_found_or_refused() -> None:
    """Case does not matter; a divided GPU leads to its slices; what is there is listed."""
    part = gpu(1, uuid=MIG, parent_uuid=UUIDS[1])
    here = machine(gpu(0), part)
    assert select_device(UUIDS[0].replace("abc", "ABC"), here, {}).name == UUIDS[0]
    assert select_device(MIG, here, {}).gpu == part
    with pytest.raises(DeviceError, match="divided into slices") as caught:
        select_device(UUIDS[1], here, {})
    assert MIG in caught.value.choices
    with pytest.raises(DeviceError, match="there are Card 0"):
        select_device(UUIDS[2], here, {})
    with pytest.raises(DeviceError, match="no GPU"):
        select_device(UUIDS[2], machine(), {})


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("0", [0]),
        ("1,0", [1, 0]),
        (UUIDS[1], [1]),
        ("GPU-1", [1]),
        ("", []),
        ("-1", []),
        ("0,7,1", [0]),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_are_obeyed(listed: str, expected: list[int]) -> None:
    """As CUDA reads the variable: the list ends at the first entry that names nothing."""
    here = machine(gpu(0), gpu(1))
    environ = {"CUDA_VISIBLE_DEVICES": listed}
    assert [g.index for g in visible_gpus(here, environ)] == expected
    chosen = select_device("auto", here, environ)
    assert chosen.source == "environment"
    assert chosen.kind == ("cuda" if expected else "cpu")
