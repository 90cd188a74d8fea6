"""Linear in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.gated_activation.reference import gated_activation


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "",
    limit: float | None = None,
    activate: Callable[..., Tensor] = gated_activation,
    out: Tensor | None = None,
) -> Tensor:
    """`x` [T, I] times `weight` [O, I] transposed, plus `bias` [O]: [T, O] in the dtype of `x`.

    With an `activation` the rows of `weight` are those of gate, then of up, and the result is act(gate) * up as by
    `gated_activation`: [T, O / 2]. Where the product does not end with it, `activate` is called, which is the chosen
    backend of that op. `out`, contiguous, is where the result is to be, not with a bias or an activation: of that
    dtype, or in float32, which then holds the sums as they are.
    """
    if out is not None:
        assert bias is None, "a product with a bias has no place of its own"
        assert not activation, "an activation has no place of its own"
        return _into(x, weight.t(), out)
    product = torch.nn.functional.linear(x, weight, bias)
    return activate(product, activation, limit) if activation else product


def _into(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Only cuBLAS multiplies numbers of 16 bits into float32: elsewhere they are widened first."""
    if out.dtype == x.dtype:
        return torch.mm(x, weight, out=out)
    if x.is_cuda:
        return torch.mm(x, weight, out.dtype, out=out)
    return torch.mm(x.to(out.dtype), weight.to(out.dtype), out=out)
