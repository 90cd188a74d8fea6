"""RMS norm in plain torch."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

from kernels.fp8_linear.rounded import Rounded


@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, offset: float = 0.0) -> Tensor: ...
@overload
def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None, offset: float, rounds: bool
) -> Tensor | Rounded: ...
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    offset: float = 0.0,
    rounds: bool = False,
) -> Tensor | Rounded:
    """x / sqrt(mean(x^2) + eps) * (weight + offset) over the last dimension (Zhang and Sennrich, 2019).

    Args:
        x: [..., N]; normalised per last dimension, so [T, H] for a layer and [T, heads, head_dim] for q and k.
        weight: [N].
        residual: [..., N] or None. If given, it becomes x + residual *in place*, and that sum is what is normalised.
        rounds: the rows are for products in FP8: the result is `Rounded`, in which a backend may give what
            `fp8_linear.reference.quantise` makes of them. This one does not.
        offset: 1 in families whose checkpoints hold what a weight differs from 1 by.

    Returns:
        A new tensor like `x`. The mean is taken in float32; the product with `weight` in the dtype of `x`, or with an
        offset in float32 and rounded once, as the published models do it.
    """
    rows = normed(x if residual is None else residual.add_(x), weight, eps, offset)
    return Rounded(rows) if rounds else rows


def normed(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """`rms_norm` of `x` alone, for the references of kernels that norm in passing."""
    if x.dtype == torch.float32:
        return torch.nn.functional.rms_norm(x, weight.shape, weight + offset if offset else weight, eps)
    wide = x.float()
    wide.mul_(wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_())
    if offset:
        return wide.mul_(weight.float() + offset).to(x.dtype)
    return wide.to(x.dtype).mul_(weight)
