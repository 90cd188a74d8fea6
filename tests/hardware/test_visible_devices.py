"""CUDA_VISIBLE_DEVICES, read as CUDA reads it: measured on eight H200 with driver 580, by `cuInit`, `cuDeviceGetCount`
and `cuDeviceGetUuid` in a process of its own for each value."""

from __future__ import annotations

import pytest

from appliance.hardware.device import visible_gpus
from appliance.hardware.gpu import Gpu
from appliance.hardware.visible import VisibleDevices, read_visible
from tests.hardware.recorded import GIB, machine_of, made_of

EIGHT = machine_of("h200-x8")
FIRST, SECOND = (gpu.uuid for gpu in EIGHT.gpus[:2])
DIGITS = FIRST.removeprefix("GPU-")
ALL = list(range(8))
FAILED = "cuInit fails with CUDA_ERROR_INVALID_DEVICE"

# (value, the GPUs that CUDA then shows, by index)
MEASURED = [
    (None, ALL),
    ("0", [0]),
    ("1,0", [1, 0]),
    ("0,7,1", [0, 7, 1]),
    ("7", [7]),
    ("0,0", FAILED),
    ("-1", []),
    ("", []),
    ("NoDevFiles", []),
    ("none", []),
    ("all", []),
    (" 1", [1]),
    ("1 ", [1]),
    ("0, 1", [0, 1]),
    ("0 ,1", [0, 1]),
    ("01", [1]),
    ("0x1", [0]),
    ("1.5", [1]),
    ("1gpu", [1]),
    ("+1", [1]),
    ("0,,1", [0]),
    (",0", []),
    ("0,", [0]),
    ("0;1", [0]),
    ("0:1", [0]),
    ("'0'", []),
    ('"0"', []),
    ("GPU0", []),
    ("cuda:0", []),
    ("-1,0", []),
    ("0,-1,1", [0]),
    ("2147483648", []),
    ("4294967296", [0]),
    ("4294967297", [1]),
    ("8", []),
    ("0,8,1", [0]),
    (FIRST, [0]),
    (f"{FIRST},{SECOND}", [0, 1]),
    (f"{SECOND},{FIRST}", [1, 0]),
    (f"{FIRST},{FIRST}", FAILED),
    (f"0,{SECOND}", [0]),
    (f"{SECOND},0", [1]),
    (f"{FIRST},0", [0]),
    ("1,GPU-x,0", [1]),
    ("GPU-", []),
    (FIRST[:5], [0]),
    (FIRST[:8], [0]),
    (FIRST[:12], [0]),
    (FIRST[:13], [0]),
    (FIRST.upper(), [0]),
    (FIRST.lower(), []),
    (DIGITS, []),
    (FIRST.replace("GPU-", "GPU"), []),
    ("GPU-" + DIGITS.replace("-", ""), [0]),
    (f"MIG-{DIGITS}", [0]),
    (f"MIG-{FIRST}/1/0", []),
    (f"{FIRST},MIG-{SECOND}/1/0", [0]),
    (f"{FIRST},GPU-ffffffff,{SECOND}", [0]),
    (f"GPU-ffffffff,{SECOND}", []),
    (f" {SECOND}", []),
    (f"{SECOND} ", [1]),
    (f"{FIRST}, {SECOND}", [0]),
    (f"{FIRST}x", [0]),
]


@pytest.mark.parametrize(("listed", "shown"), MEASURED)
def test_a_value_leaves_the_gpus_that_cuda_shows(listed: str | None, shown: list[int] | str) -> None:
    found = read_visible(listed, EIGHT)
    assert found.refused == (shown == FAILED)
    assert [gpu.index for gpu in found.gpus] == ([] if shown == FAILED else shown)


def wrong(found: VisibleDevices) -> list[str]:
    return [entry.wrong for entry in found.entries]


@pytest.mark.parametrize(
    ("listed", "kinds", "said"),
    [
        ("0,1", ["", ""], ""),
        ("-1", ["hides-all"], "every GPU"),
        ("0,-1,1", ["", "hides-rest", "unreached"], "ends at '-1'"),
        ("0,9,1", ["", "out-of-range", "unreached"], "GPU 9"),
        ("0,0", ["", "repeated"], "'0'"),
        (f"0,{SECOND}", ["", "mixed"], SECOND),
        (f"{SECOND},0", ["", "mixed"], "'0'"),
        (f"{FIRST}, {SECOND}", ["", "unknown"], SECOND),
        ("GPU-", ["unknown"], "GPU-"),
        ("GPU-ffffffff", ["unknown"], "GPU-ffffffff"),
        ("all", ["unknown"], "NVIDIA_VISIBLE_DEVICES"),
        ("cuda:0", ["unknown"], "'cuda:0'"),
        ("NoDevFiles", ["hides-all"], "every GPU"),
    ],
)
def test_each_entry_says_what_is_wrong_with_it(listed: str, kinds: list[str], said: str) -> None:
    """A sentence each; to hide every GPU is no problem."""
    found = read_visible(listed, EIGHT)
    assert wrong(found) == kinds
    assert said in " ".join(entry.why for entry in found.entries)
    assert [entry.wrong for entry in found.problems] == [kind for kind in kinds if kind not in ("", "hides-all")]


def test_without_a_digit_no_gpu_is_named() -> None:
    """Not even where there is but one; measured on one H200."""
    one = machine_of("rtx-pro-6000")
    for listed in ("GPU-", "GPU-x", "MIG-", "GPU-,GPU-"):
        assert read_visible(listed, one).gpus == ()
    assert read_visible("0x0", one).gpus == one.gpus


def test_a_beginning_that_several_uuids_have_names_none() -> None:
    eight = [gpu for gpu in EIGHT.gpus if gpu.uuid.startswith("GPU-23")]
    assert len(eight) == 2
    found = read_visible("GPU-23", EIGHT)
    assert (found.gpus, wrong(found)) == ((), ["ambiguous"])
    assert "2 devices" in found.entries[0].why


def test_what_a_list_meant_is_given_by_uuids() -> None:
    """Also of entries that CUDA does not come to; each once."""
    assert read_visible(f"0,{SECOND}", EIGHT).meant == f"{FIRST},{SECOND}"
    assert read_visible("1,1", EIGHT).meant == SECOND
    assert read_visible("0,9,1", EIGHT).meant == f"{FIRST},{SECOND}"
    assert read_visible("all", EIGHT).meant == ""


def test_slices_are_named_by_uuid_of_both_styles() -> None:
    """An index, or the UUID of a GPU that is divided, gets its first slice, which is said."""
    a100 = machine_of("a100-mig")
    parent, slices = a100.boards[0]
    assert read_visible(slices[1].uuid, a100).gpus == (slices[1],)
    assert read_visible(slices[1].uuid[:12], a100).gpus == (slices[1],)
    old = f"MIG-{parent.uuid}/13/0"
    assert read_visible(old, a100).gpus == (slices[2],)
    assert wrong(read_visible(f"MIG-{parent.uuid}/9/0", a100)) == ["unknown"]
    for by in ("0", parent.uuid):
        found = read_visible(by, a100)
        assert (found.gpus, wrong(found)) == ((slices[0],), ["divided"])
        assert slices[0].uuid in found.entries[0].why
    assert wrong(read_visible("0", machine_of("mig-without-slices"))) == ["unknown"]
    mixed = machine_of("h100-mig-one-of-two")
    assert [gpu.name[-3:] for gpu in read_visible("1", mixed).gpus] == ["BM3"]


def test_an_index_among_different_gpus_is_doubtful_unless_the_order_is_the_buss() -> None:
    """CUDA puts the fastest first, by a rule that it does not tell."""
    gpus = [
        Gpu(
            uuid=f"GPU-{number}2345678-1234-1234-1234-123456789abc",
            index=number,
            name=name,
            memory_bytes=GIB,
            memory_free_bytes=GIB,
            compute_capability=(9, 0),
        )
        for number, name in enumerate(("T4", "H100"))
    ]
    here = made_of(*gpus)
    assert wrong(read_visible("0", here)) == ["order-unknown"]
    assert wrong(read_visible("0", here, "FASTEST_FIRST")) == ["order-unknown"]
    assert wrong(read_visible("0", here, "PCI_BUS_ID")) == [""]
    assert wrong(read_visible(gpus[0].uuid, here)) == [""]
    assert visible_gpus(here, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == (gpus[1],)


def test_without_a_gpu_every_index_is_out_of_range() -> None:
    found = read_visible("0", machine_of("none"))
    assert wrong(found) == ["out-of-range"]


def test_what_is_no_plain_index_is_said() -> None:
    """CUDA reads digits of ASCII, as many as fit into an integer, and passes over what follows them."""
    eight = machine_of("h200-x8")
    semicolon = read_visible("0;1", eight)
    assert (wrong(semicolon), len(semicolon.gpus)) == (["cut"], 1)
    assert "read as 0" in semicolon.entries[0].why
    assert (wrong(read_visible("\uff10", eight)), read_visible("\uff10", eight).gpus) == (["unknown"], ())
    assert "'99999999999999999999'" in read_visible("9" * 20, eight).entries[0].why
    assert wrong(read_visible("9" * 9999, eight)) != [""]
