"""Linear by oneDNN against plain torch, with weights in either layout."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import TOLERANCES, error, randn
from kernels.linear import onednn, reference

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [0, 1, 5, 123])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("prepared", [False, True])
def test_onednn_agrees_with_the_reference(dtype, tokens, bias, prepared):
    x = randn((tokens, 2 * 123), dtype, CPU, seed=1)[:, :123]  # of a wider tensor
    weight, added = randn((77, 123), dtype, CPU, seed=2), randn((77,), dtype, CPU, seed=3) if bias else None
    expected = reference.linear(x.float(), weight.float(), None if added is None else added.float())
    result = onednn.linear(x, onednn.prepare(weight) if prepared else weight, added)
    assert result.dtype == dtype
    assert error(result, expected) <= TOLERANCES[dtype]
