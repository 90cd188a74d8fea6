"""RMS norm as one Triton kernel: a row is read once, and its residual written on the way."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import launch
from kernels.rms_norm import variants

_of = functools.cache(variants.of)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """As `reference.rms_norm`, for bfloat16 and float16; the sum with the residual is rounded before it is normalised.

    `x` may be [T, N] or [T, heads, N] of any stride between tokens and heads; N and the strides are multiples of 16.
    The residual is contiguous.
    """
    size = x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    rows = x.shape[0] * heads
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not rows:
        return out
    variant = _of(str(x.dtype).removeprefix("torch."), variants.block_of(size), residual is not None)
    rows_each = dict(variant.constants)["ROWS"]
    launch(
        rms_norm_kernel, variant, (triton.cdiv(rows, rows_each),),
        x, weight, x if residual is None else residual, out,
        rows, heads, size // variants.UNIT, x.stride(0) // variants.UNIT, x.stride(-2) // variants.UNIT, eps,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows", "heads", "size16", "token_stride16", "head_stride16"])
def rms_norm_kernel(
    x_ptr,  # [tokens, heads, size], strided
    weight_ptr,  # [size]
    residual_ptr,  # [tokens, size], or anything where RESIDUAL is false
    out_ptr,  # [tokens, heads, size], contiguous
    rows,  # tokens * heads
    heads,
    size16,
    token_stride16,
    head_stride16,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    size = size16 * 16
    token = (row // heads).to(tl.int64)
    start = token * (token_stride16 * 16) + (row % heads) * (head_stride16 * 16)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    packed = row.to(tl.int64)[:, None] * size + column[None, :]
    x = tl.load(x_ptr + start[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        total = (x + tl.load(residual_ptr + packed, mask=inside, other=0.0).to(tl.float32)).to(x_ptr.dtype.element_ty)
        tl.store(residual_ptr + packed, total, mask=inside)
        x = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / size + eps)
    # Rounded before the weight is applied, as the published models do it.
    normed = (x * scale[:, None]).to(x_ptr.dtype.element_ty).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < size, other=0.0).to(tl.float32)
    tl.store(out_ptr + packed, (normed * weight[None, :]).to(x_ptr.dtype.element_ty), mask=inside)
