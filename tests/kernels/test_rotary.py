"""Rotary: Triton, interpreted, against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error
from kernels.rotary import reference, triton
from kernels.rotary.cases import cases
from tests.kernels.flags import every_form

CPU = torch.device("cpu")
with every_form():
    CASES = list(cases(90))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_triton_agrees_with_the_reference(case):
    for result, expected in zip(case.run(triton.rotary, CPU), case.run(reference.rotary, CPU), strict=True):
        assert error(result, expected) <= case.tolerance


def test_a_head_that_turns_in_more_dimensions_than_any_block_is_refused():
    x = torch.zeros((1, 1, 512), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"256.*512"):
        triton.rotary(x, torch.zeros(1, dtype=torch.int64), torch.zeros((4, 512), dtype=torch.bfloat16))


def test_a_stride_that_leaves_heads_unaligned_is_refused():
    x = torch.zeros((2, 3, 20), dtype=torch.bfloat16)
    with pytest.raises(AssertionError, match="a stride of 60 is not a multiple of 8"):
        triton.rotary(x, torch.zeros(2, dtype=torch.int64), torch.zeros((4, 16), dtype=torch.bfloat16))
