"""Gated activation: Triton, interpreted, against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error
from kernels.gated_activation import reference, triton
from kernels.gated_activation.cases import cases

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", list(cases(90)), ids=lambda case: case.name)
def test_triton_agrees_with_the_reference(case):
    for result, expected in zip(
        case.run(triton.gated_activation, CPU), case.run(reference.gated_activation, CPU), strict=True
    ):
        assert error(result, expected) <= case.tolerance


def test_a_limit_lets_nan_through():
    """A clamp that hid it would hide a damaged model."""
    gate_up = torch.tensor([[float("nan")] + [1.0] * 15, [1.0] * 8 + [float("nan")] + [1.0] * 7], dtype=torch.bfloat16)
    for function in (triton.gated_activation, reference.gated_activation):
        out = function(gate_up, "silu", 2.0)
        assert out.isnan().tolist() == [[True] + [False] * 7] * 2


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match=r"'relu'.*silu, gelu, gelu_tanh"):
        triton.gated_activation(torch.zeros((1, 16), dtype=torch.bfloat16), "relu")
