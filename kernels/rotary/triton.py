"""Rotary embedding as one Triton kernel, in place: it reads and writes the turning dimensions and nothing else."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import cdiv, launch
from kernels.rotary import variants
from kernels.variants import Variant


def rotary(x: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool = False) -> None:
    """As `reference.rotary`, for bfloat16 and float16, computed in float32 and rounded once.

    The strides between tokens and between heads are multiples of 8; the table is contiguous and of the dtype of `x`.
    """
    tokens, heads, _ = x.shape
    if not tokens:
        return
    token_stride, head_stride, _ = x.stride()
    half = cos_sin.shape[1] // 2
    variant, rows_each = _plan(x.dtype, half, token_stride, head_stride, interleaved)
    launch(
        rotary_kernel, variant, (cdiv(tokens * heads, rows_each),),
        x, positions, cos_sin, tokens * heads, heads, half // variants.unit_of(half),
        token_stride // variants.STRIDE_UNIT, head_stride // variants.STRIDE_UNIT,
    )  # fmt: skip


@functools.cache
def _plan(dtype: torch.dtype, half: int, token_stride: int, head_stride: int, interleaved: bool) -> tuple[Variant, int]:
    """The variant, and how many heads of tokens a program turns."""
    for stride in (token_stride, head_stride):
        assert stride % variants.STRIDE_UNIT == 0, f"a stride of {stride} is not a multiple of {variants.STRIDE_UNIT}"
    block = variants.block_of(half)
    name = str(dtype).removeprefix("torch.")
    return variants.of(name, block, variants.unit_of(half), interleaved), variants.TILE // block


# Positions may begin anywhere in a longer tensor of them.
@triton.jit(
    do_not_specialize=["rows", "heads", "half_units", "token_stride8", "head_stride8"],
    do_not_specialize_on_alignment=["positions_ptr"],
)
def rotary_kernel(
    x_ptr,  # [tokens, heads, head_dim], strided
    positions_ptr,  # [tokens]
    cos_sin_ptr,  # [max_position, 2 * half], contiguous
    rows,  # tokens * heads
    heads,
    half_units,
    token_stride8,
    head_stride8,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
    UNIT: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    half = half_units * UNIT
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = (row // heads).to(tl.int64)
    start = x_ptr + (token * (token_stride8 * 8) + (row % heads) * (head_stride8 * 8))[:, None]
    column = tl.arange(0, HALF)[None, :]
    inside = (row < rows)[:, None] & (column < half)
    if INTERLEAVED:  # a pair is one word: its halves never leave their thread
        words = start.to(tl.pointer_type(tl.uint32)) + column
        word = tl.load(words, mask=inside, other=0)
        first = _float(word & 0xFFFF, x_ptr.dtype.element_ty)
        second = _float(word >> 16, x_ptr.dtype.element_ty)
    else:
        first = tl.load(start + column, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(start + half + column, mask=inside, other=0.0).to(tl.float32)
    position = tl.load(positions_ptr + token, mask=row < rows, other=0)
    angle = cos_sin_ptr + (position * (2 * half))[:, None] + column  # neighbouring rows share it, from the L1 cache
    cos = tl.load(angle, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(angle + half, mask=inside, other=0.0).to(tl.float32)
    first, second = first * cos - second * sin, second * cos + first * sin
    if INTERLEAVED:
        word = _bits(first, x_ptr.dtype.element_ty) | (_bits(second, x_ptr.dtype.element_ty) << 16)
        tl.store(words, word, mask=inside)
    else:
        tl.store(start + column, first.to(x_ptr.dtype.element_ty), mask=inside)
        tl.store(start + half + column, second.to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _float(bits, TYPE: tl.constexpr):
    return bits.to(tl.uint16).to(TYPE, bitcast=True).to(tl.float32)


@triton.jit
def _bits(x, TYPE: tl.constexpr):
    return x.to(TYPE).to(tl.uint16, bitcast=True).to(tl.uint32)
