"""RMS norm: Triton, interpreted, against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error
from kernels.fp8_linear.triton import quantise
from kernels.launch import launching_for
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


@pytest.mark.parametrize("rms_norm", [triton.rms_norm, reference.rms_norm], ids=["triton", "torch"])
def test_an_offset_is_added_and_multiplied_by_in_float32(rms_norm):
    """1 + w would lose most of a small w in bfloat16, and the normed row is rounded after the product only."""
    x, weight = torch.randn(7, 256, dtype=torch.float64), 0.01 * torch.randn(256, dtype=torch.float64)
    x, weight = x.bfloat16(), weight.bfloat16()
    exact = torch.nn.functional.rms_norm(x.double(), (256,), weight.double() + 1, 1e-6)
    found = rms_norm(x, weight, 1e-6, offset=1.0)
    assert (found.double() - exact).abs().max() <= exact.abs().max() * 2**-8
    assert (found != exact.bfloat16()).sum() <= 2  # where float32 falls on the other side of a tie


def _rounded(arch: int, rows: int):
    x, residual = (torch.randn(rows, 272, generator=torch.Generator().manual_seed(s)).bfloat16() for s in (1, 2))
    with launching_for(arch):
        return triton.rms_norm(x, torch.rand(272).bfloat16(), 1e-6, residual, rounds=True)


def test_rows_are_rounded_to_what_a_product_would_round_them_to():
    rounded = _rounded(90, 67)
    values, scale = quantise(rounded.rows)
    assert torch.equal(rounded.values.view(torch.uint8), values.view(torch.uint8))
    assert torch.equal(rounded.scale, scale)


@pytest.mark.parametrize(("arch", "rows"), [(90, 32), (80, 67)])
def test_a_product_that_rounds_nothing_or_by_itself_is_given_rows_alone(arch, rows):
    assert _rounded(arch, rows)[1:] == (None, None)
