"""GPUs that nobody has here: found by the names that people and drivers use, and never guessed."""

from __future__ import annotations

import pytest

from appliance.hardware.known import KNOWN_GPUS, UnknownGpuError, known_gpu
from kernels.cast.architectures import ARCHITECTURES


@pytest.mark.parametrize(
    ("asked", "name", "capability"),
    [
        ("RTX PRO 6000", "RTX PRO 6000 Blackwell", (12, 0)),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Blackwell", (12, 0)),
        ("rtx pro 5000", "RTX PRO 5000 Blackwell", (12, 0)),
        ("5090", "GeForce RTX 5090", (12, 0)),
        ("dgx spark", "DGX Spark (GB10)", (12, 1)),
        ("NVIDIA GB10", "DGX Spark (GB10)", (12, 1)),
        ("B200", "B200", (10, 0)),
        ("b300", "B300", (10, 3)),
        ("H100", "H100 80GB", (9, 0)),
        ("NVIDIA H100 80GB HBM3", "H100 80GB", (9, 0)),
        ("NVIDIA H100 NVL", "H100 NVL", (9, 0)),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB", (9, 0)),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB", (8, 0)),
        ("A100", "A100 80GB", (8, 0)),
        ("l40s", "L40S", (8, 9)),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", (8, 9)),
        ("sm_86", "RTX A6000", (8, 6)),
    ],
)
def test_a_gpu_is_found_by_any_of_its_names(asked: str, name: str, capability: tuple[int, int]) -> None:
    found = known_gpu(asked)
    assert (found.name, found.compute_capability) == (name, capability)


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("RTX 6000", {"RTX PRO 6000 Blackwell", "RTX 6000 Ada"}),
        ("RTX 4091", {"GeForce RTX 4090", "GeForce RTX 4080"}),
        ("Radeon", {gpu.name for gpu in KNOWN_GPUS}),
        ("", {gpu.name for gpu in KNOWN_GPUS}),
        ("GPU" * 1000, {gpu.name for gpu in KNOWN_GPUS}),
    ],
)
def test_a_name_that_means_none_or_several_is_answered_with_the_nearest(asked: str, nearest: set[str]) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        known_gpu(asked)
    assert nearest <= set(caught.value.nearest) or nearest == set(caught.value.nearest)


def test_every_row_is_found_by_its_own_name_and_every_architecture_has_a_gpu() -> None:
    for gpu in KNOWN_GPUS:
        for name in (gpu.name, *gpu.aliases, f"NVIDIA {gpu.name}"):
            assert known_gpu(name) == gpu, name
        assert gpu.as_gpu().memory_bytes == gpu.memory_gib << 30
    assert {gpu.architecture for gpu in KNOWN_GPUS} >= set(ARCHITECTURES)
