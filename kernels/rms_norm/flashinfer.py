"""RMS norm by FlashInfer."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

from kernels.flashinfer import library, loading
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
    """As `reference.rms_norm`, for bfloat16 and float16; the product with `weight` is taken in float32. It is not
    chosen for models whose norms have an offset.

    `x` may be [T, N] or [T, heads, N] of any stride between tokens and heads. The sum with the residual is torch's:
    FlashInfer's kernel that adds and norms at once leaves the result in `x`, which belongs to the caller.
    """
    assert not offset, f"FlashInfer's norm has no offset, but this one has {offset:g}"
    if residual is not None:
        x = residual.add_(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.shape[0]:
        with loading("rms_norm"):
            library().norm.rmsnorm(x, weight, eps, out=out)
    return Rounded(out) if rounds else out
