"""Gated norm as one Triton kernel."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.gated_norm import variants
from kernels.launch import cdiv, launch
from kernels.variants import Variant


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `reference.gated_norm`, for bfloat16 and float16.

    The heads of a token are neighbours; head sizes, at most 256, and strides are multiples of 8.
    """
    tokens, heads, size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if tokens:
        strides = x.stride(0), gate.stride(0)
        variant, unit = _plan(x.dtype, size, strides), variants.UNIT
        assert x.stride(1) == gate.stride(1) == size, "heads lie apart"
        launch(
            gated_norm_kernel, variant, (cdiv(tokens * heads, int(variant.options["ROWS"])),),
            x, gate, weight, out, tokens * heads, heads, size // unit, *(stride // unit for stride in strides), eps,
        )  # fmt: skip
    return out


@functools.cache
def _plan(dtype: torch.dtype, size: int, strides: tuple[int, ...]) -> Variant:
    for count in (size, *strides):
        assert count % variants.UNIT == 0, f"a size or stride of {count} is not a multiple of {variants.UNIT}"
    return variants.of(str(dtype).removeprefix("torch."), variants.block_of(size))


@triton.jit(do_not_specialize=["rows", "heads", "size8", "x_stride8", "gate_stride8", "eps"])
def gated_norm_kernel(
    x_ptr,  # [tokens, heads, size], tokens strided
    gate_ptr,  # the same
    weight_ptr,  # [size]
    out_ptr,  # [tokens, heads, size], contiguous
    rows,  # tokens * heads
    heads,
    size8,
    x_stride8,
    gate_stride8,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    size = size8 * 8
    token, place = (row // heads).to(tl.int64)[:, None], (row % heads * size)[:, None] + column
    inside = (row < rows)[:, None] & (column < size)
    x = tl.load(x_ptr + token * (x_stride8 * 8) + place, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + token * (gate_stride8 * 8) + place, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < size, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / size + eps)[:, None]
    out = x * scale * weight * (gate * tl.sigmoid(gate))
    target = out_ptr + row.to(tl.int64)[:, None] * size + column
    tl.store(target, out.to(out_ptr.dtype.element_ty), mask=inside)
