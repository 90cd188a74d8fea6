"""RMS norm as one Triton kernel: a row is read once, and its residual written on the way, as is what products in FP8
round it to."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.fp8_linear import GROUP
from kernels.fp8_linear.rounded import Rounded
from kernels.fp8_linear.triton import rounded_to_fp8
from kernels.fp8_linear.variants import takes_rounded
from kernels.launch import architecture, cdiv, launch
from kernels.rms_norm import variants
from kernels.variants import Variant

_GROUP = tl.constexpr(GROUP)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    offset: float = 0.0,
    rounds: bool = False,
) -> Tensor | Rounded:
    """As `reference.rms_norm`, for bfloat16 and float16; the sum with the residual is rounded before it is normalised.

    `x` may be [T, N] or [T, heads, N] of any stride between tokens and heads; N and the strides are multiples of 8.
    The residual is contiguous. Rows that have one are rounded where a product of so many tokens would round them.
    """
    shape, strides = x.shape, x.stride()
    heads = shape[1] if len(shape) == 3 else 1
    rows = shape[0] * heads
    out = values = scale = x.new_empty(shape)
    rounded = Rounded(out)
    rounding = rounds and residual is not None and shape[-1] > GROUP // 2 and takes_rounded(architecture(), rows)
    if rounding:
        values = torch.empty(shape, dtype=torch.float8_e4m3fn, device=x.device)
        scale = torch.empty(cdiv(shape[-1], GROUP), rows, dtype=torch.float32, device=x.device)
        rounded = Rounded(out, values, scale)
    if rows:
        variant, rows_each = _plan(x.dtype, shape[-1], strides, residual is not None, rounding)
        launch(
            rms_norm_kernel, variant, (cdiv(rows, rows_each),),
            x, weight, x if residual is None else residual, out, values, scale,
            rows, heads, shape[-1] // variants.UNIT, strides[0] // variants.UNIT, strides[-2] // variants.UNIT,
            eps, offset,
        )  # fmt: skip
    return rounded if rounds else out


@functools.cache
def _plan(
    dtype: torch.dtype, size: int, strides: tuple[int, ...], residual: bool, rounding: bool
) -> tuple[Variant, int]:
    """The variant, and how many rows a program takes."""
    assert len(strides) in (2, 3), f"x must be [T, N] or [T, heads, N], but has {len(strides)} dimensions"
    assert strides[-1] == 1, f"the elements of a row must be adjacent, but are {strides[-1]} apart"
    for count in (size, *strides[:-1]):
        assert count % variants.UNIT == 0, f"a row or stride of {count} is not a multiple of {variants.UNIT}"
    block = variants.block_of(size)
    return variants.of(str(dtype).removeprefix("torch."), block, residual, rounding), variants.rows_of(block)


@triton.jit(do_not_specialize=["rows", "heads", "size8", "token_stride8", "head_stride8", "eps", "offset"])
def rms_norm_kernel(
    x_ptr,  # [tokens, heads, size], strided
    weight_ptr,  # [size]
    residual_ptr,  # [tokens, size], or anything where RESIDUAL is false
    out_ptr,  # [tokens, heads, size], contiguous
    values_ptr,  # [tokens, size] FP8, or anything where ROUNDED is false
    scale_ptr,  # [ceil(size / 128), tokens] float32, or anything where ROUNDED is false
    rows,  # tokens * heads
    heads,
    size8,
    token_stride8,
    head_stride8,
    eps,
    offset,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROUNDED: tl.constexpr,
):
    wait_for_previous()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    size = size8 * 8
    token = (row // heads).to(tl.int64)
    start = token * (token_stride8 * 8) + (row % heads) * (head_stride8 * 8)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    packed = row.to(tl.int64)[:, None] * size + column[None, :]
    # As wide as the tile, so that each thread has the weights of its own columns; loaded early, before the sums.
    weight = tl.load(weight_ptr + column[None, :] + tl.zeros((ROWS, 1), tl.int32), mask=inside, other=0.0)
    x = tl.load(x_ptr + start[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        total = (x + tl.load(residual_ptr + packed, mask=inside, other=0.0).to(tl.float32)).to(x_ptr.dtype.element_ty)
        tl.store(residual_ptr + packed, total, mask=inside)
        x = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / size + eps)
    normed = x * scale[:, None]
    # Rounded before the weight is applied, or with an offset only after it, as the published models do it.
    normed = tl.where(offset == 0, normed.to(x_ptr.dtype.element_ty).to(tl.float32), normed)
    result = (normed * (weight.to(tl.float32) + offset)).to(x_ptr.dtype.element_ty)
    tl.store(out_ptr + packed, result, mask=inside)
    if ROUNDED:
        values, scale = rounded_to_fp8(tl.reshape(result, [ROWS * BLOCK // _GROUP, _GROUP]))
        tl.store(values_ptr + packed, tl.reshape(values, [ROWS, BLOCK]), mask=inside)
        group = tl.arange(0, BLOCK // _GROUP)[None, :]
        place = scale_ptr + group * rows.to(tl.int64) + row[:, None]
        known = (row < rows)[:, None] & (group * _GROUP < size)
        tl.store(place, tl.reshape(scale, [ROWS, BLOCK // _GROUP]), mask=known)
