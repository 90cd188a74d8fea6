"""The norm of gated delta layers: torch against the definition, and Triton, interpreted, against torch."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error, randn
from kernels.gated_norm import reference, triton
from kernels.gated_norm.cases import cases

CPU = torch.device("cpu")


def test_torch_agrees_with_the_definition():
    x, gate = (randn((5, 7, 32), torch.float32, CPU, seed)[:, 2:5] for seed in (1, 2))
    weight = randn((32,), torch.float32, CPU, seed=3)
    wide, gates = x.double(), gate.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight * gates / (1 + torch.exp(-gates))
    out = reference.gated_norm(x, gate, weight, 1e-3)
    assert out.is_contiguous()
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_hugging_face_agrees():
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

    norm = Qwen3NextRMSNormGated(32, eps=1e-6)
    norm.weight.data = randn((32,), torch.float32, CPU, seed=3)
    x, gate = (randn((5, 3, 32), torch.float32, CPU, seed) for seed in (1, 2))
    with torch.no_grad():
        expected = norm(x, gate)
    torch.testing.assert_close(reference.gated_norm(x, gate, norm.weight.data, 1e-6), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", list(cases(90)), ids=lambda case: case.name)
def test_triton_agrees_with_torch(case):
    for result, expected in zip(case.run(triton.gated_norm, CPU), case.run(reference.gated_norm, CPU), strict=True):
        assert error(result, expected) <= case.tolerance


def test_a_head_longer_than_any_block_is_refused():
    x = torch.zeros((1, 1, 264), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="264"):
        triton.gated_norm(x, x, x[0, 0], 1e-6)
