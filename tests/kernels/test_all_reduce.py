"""All-reduce: Triton, interpreted, against plain torch; one rank at a time, as the interpreter has no others to wait
for."""

from __future__ import annotations

import pytest
import torch

from kernels.all_reduce import ITEM_BYTES, PART_BYTES, reference, shared_bytes, triton
from kernels.all_reduce.cases import cases
from kernels.all_reduce.shared import LARGEST, alone
from kernels.cases import error, randn

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", list(cases(90)), ids=lambda case: case.name)
def test_triton_agrees_with_the_reference(case):
    for result, expected in zip(case.run(triton.all_reduce, CPU), case.run(reference.all_reduce, CPU), strict=True):
        assert error(result, expected) <= case.tolerance


@pytest.mark.parametrize("rank", range(4))
def test_every_rank_finds_the_same_numbers(rank):
    parts = [randn((64,), torch.bfloat16, CPU, seed=seed) for seed in range(4)]
    expected = sum((part.float() for part in parts), torch.zeros(64)).bfloat16()
    shared = alone(rank, 4, CPU)
    for other in {*range(4)} - {rank}:
        shared.part(other, parts[other]).copy_(parts[other])
    assert torch.equal(triton.all_reduce(parts[rank], shared), expected)


def test_sums_take_turns_with_the_two_halves():
    """What another rank may still read is not overwritten."""
    shared = alone(0, 2, CPU)
    first, second = (torch.full((8,), value, dtype=torch.float16) for value in (1.0, 2.0))
    for x in (first, second):
        triton.all_reduce(x, shared)
    mine = shared.memory[0].view(torch.float16)
    assert mine[PART_BYTES // ITEM_BYTES].item() == 1.0
    assert mine[0].item() == 2.0
    assert shared.turns[:2].tolist() == [2, 0]


def test_what_is_too_large_or_of_another_kind_is_left_to_others():
    shared = alone(0, 8, CPU)
    assert shared.holds(torch.empty(LARGEST[8] // ITEM_BYTES, dtype=torch.bfloat16))
    assert not shared.holds(torch.empty(LARGEST[8] // ITEM_BYTES + 8, dtype=torch.bfloat16))
    assert not shared.holds(torch.empty(8, dtype=torch.float32))
    assert not shared.holds(torch.empty(9, dtype=torch.bfloat16))


@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_plan_counts_what_a_rank_shares(count):
    assert sum(part.numel() for part in alone(0, count, CPU).memory) == count * shared_bytes(count)
