"""Which device a profile's `device` means."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.hardware.device import DeviceError, select_device
from appliance.hardware.gpu import Gpu
from tests.hardware.recorded import GIB, machine_of, made_of

UUIDS = [f"GPU-{n}2345678-1234-1234-1234-123456789abc" for n in range(3)]
MIG = "MIG-a2345678-1234-1234-1234-123456789abc"


def gpu(number: int, free: int = 70 * GIB, **changes: Any) -> Gpu:
    values: dict[str, Any] = {
        "uuid": UUIDS[number], "index": number, "name": f"Card {number}", "memory_bytes": 80 * GIB,
        "memory_free_bytes": free, "compute_capability": (9, 0),
    }  # fmt: skip
    return Gpu(**values | changes)


def test_auto_takes_the_gpu_with_the_most_free_memory() -> None:
    """Or the CPU where there is none; `why` says it."""
    chosen = select_device("auto", made_of(gpu(0, 10 * GIB), gpu(1, 70 * GIB)), {})
    assert (chosen.name, chosen.kind) == (UUIDS[1], "cuda")
    nothing = select_device("auto", made_of(), {})
    assert (nothing.kind, nothing.name, nothing.why) == ("cpu", "cpu", "this machine has no GPU")
    assert select_device("auto", made_of(problem="GPU 0 is lost."), {}).why == "GPU 0 is lost"
    assert select_device("cpu", made_of(gpu(0)), {}).gpu is None


def test_a_named_device_is_found_or_refused() -> None:
    """Case does not matter; a divided GPU leads to its slices; what is there is listed."""
    part = gpu(1, uuid=MIG, parent_uuid=UUIDS[1])
    here = made_of(gpu(0), part)
    assert select_device(UUIDS[0].replace("abc", "ABC"), here, {}).name == UUIDS[0]
    assert select_device(MIG, here, {}).gpu == part
    with pytest.raises(DeviceError, match=UUIDS[1]) as caught:
        select_device(UUIDS[1], here, {})
    assert MIG in caught.value.choices
    with pytest.raises(DeviceError, match="Card 0 "):
        select_device(UUIDS[2], here, {})
    with pytest.raises(DeviceError, match="no GPU"):
        select_device(UUIDS[2], made_of(), {})


def test_a_gpu_in_mig_mode_without_slices_is_no_device() -> None:
    """It is there, and nothing can run on it: why is said."""
    empty = machine_of("mig-without-slices")
    with pytest.raises(DeviceError, match="GPU 0 "):
        select_device(empty.divided[0].uuid, empty, {})
    assert "MIG mode" in select_device("auto", empty, {}).why


@pytest.mark.parametrize(
    ("listed", "kind"), [("1", "cuda"), ("", "cpu"), ("-1", "cpu"), ("0,0", "cpu"), (f"{UUIDS[1]},0", "cuda")]
)
def test_the_environment_decides_what_auto_may_take(listed: str, kind: str) -> None:
    chosen = select_device("auto", made_of(gpu(0), gpu(1)), {"CUDA_VISIBLE_DEVICES": listed})
    assert (chosen.source, chosen.kind) == ("environment", kind)
    assert chosen.gpu is None or chosen.gpu.index == 1


@pytest.mark.parametrize(("ranks", "chosen"), [(1, 0), (2, 2), (3, 0)])
def test_ranks_begin_with_a_kind_of_which_there_are_enough(ranks: int, chosen: int) -> None:
    """Those with the most free memory where no kind will do; a slice only where there is nothing else."""
    odd, *pair = gpu(0, 70 * GIB), gpu(1, 50 * GIB, name="Pair"), gpu(2, 60 * GIB, name="Pair")
    part = gpu(0, 65 * GIB, uuid=MIG, parent_uuid=UUIDS[0], name="Pair")
    assert select_device("auto", made_of(odd, *pair, part), {}, ranks).name == UUIDS[chosen]
    assert select_device("auto", made_of(part), {}, ranks).name == MIG
