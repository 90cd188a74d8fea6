"""RMS norm: Triton, interpreted, against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error
from kernels.rms_norm import reference, triton
from kernels.rms_norm.cases import cases

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", list(cases(90)), ids=lambda case: case.name)
def test_triton_agrees_with_the_reference(case):
    for result, expected in zip(case.run(triton.rms_norm, CPU), case.run(reference.rms_norm, CPU), strict=True):
        assert error(result, expected) <= case.tolerance


def test_a_row_longer_than_any_block_is_refused():
    x = torch.zeros((1, 16392), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="16,392"):
        triton.rms_norm(x, x[0], 1e-6)
