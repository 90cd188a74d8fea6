"""Heads to attention and its cache, as one Triton kernel: q is turned in place, k and v go straight to the cache."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.float8 import encode_e4m3
from kernels.launch import architecture, cdiv, launch
from kernels.rotary_cache import variants
from kernels.variants import Variant


def rotary_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
    interleaved: bool = False,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    offset: float = 0.0,
) -> None:
    """As `reference.rotary_cache`, for bfloat16 and float16, computed in float32 and rounded where torch rounds, but
    for the two products of a turn.

    Head sizes, pairs that turn, and the strides between tokens are multiples of 8; the heads of a token are neighbours,
    and the table and the caches contiguous.
    """
    tokens, heads, head_dim = query.shape
    if not tokens:
        return
    kv_heads = key.shape[1]
    strides = (query.stride(0), key.stride(0), value.stride(0))
    arch, half = architecture(), cos_sin.shape[1] // 2
    variant = _plan(arch, query.dtype, key_cache.dtype, head_dim, half, strides, norms is not None, interleaved)
    if variant.arguments[7] == "*u8":
        key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    query_weight, key_weight = (query, key) if norms is None else norms
    rows = variants.rows_of(variants.block_of(head_dim))
    unit = variants.UNIT
    launch(
        rotary_cache_kernel, variant, (cdiv(tokens * heads, rows) + 2 * cdiv(tokens * kv_heads, rows),),
        query, key, value, query_weight, key_weight, positions, cos_sin, key_cache, value_cache, slot_mapping,
        tokens, heads, kv_heads, head_dim // unit, half // unit, *(stride // unit for stride in strides),
        eps, 1.0 / key_scale, 1.0 / value_scale, offset,
    )  # fmt: skip


@functools.cache
def _plan(
    arch: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    head_dim: int,
    half: int,
    strides: tuple[int, ...],
    norm: bool,
    interleaved: bool,
) -> Variant:
    for count in (head_dim, half, *strides):
        assert count % variants.UNIT == 0, f"a size or stride of {count} is not a multiple of {variants.UNIT}"
    name, cache_name = (str(each).removeprefix("torch.") for each in (dtype, cache_dtype))
    return variants.of(arch, name, cache_name, variants.block_of(head_dim), norm, interleaved)


# Positions and slots may begin anywhere in a longer tensor.
@triton.jit(
    do_not_specialize=[
        "tokens", "heads", "kv_heads", "size8", "half8", "query_stride8", "key_stride8", "value_stride8", "eps",
        "key_inverse_scale", "value_inverse_scale", "offset",
    ],
    do_not_specialize_on_alignment=["positions_ptr", "slot_mapping_ptr"],
)  # fmt: skip
def rotary_cache_kernel(
    query_ptr,  # [tokens, heads, size], tokens strided
    key_ptr,  # [tokens, kv_heads, size], tokens strided
    value_ptr,  # the same
    query_weight_ptr,  # [size], or anything where NORM is false
    key_weight_ptr,  # the same
    positions_ptr,  # [tokens]
    cos_sin_ptr,  # [max_position, 2 * half], contiguous
    key_cache_ptr,  # [slots, kv_heads, size], contiguous
    value_cache_ptr,  # the same
    slot_mapping_ptr,  # [tokens]
    tokens,
    heads,
    kv_heads,
    size8,
    half8,
    query_stride8,
    key_stride8,
    value_stride8,
    eps,
    key_inverse_scale,
    value_inverse_scale,
    offset,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    wait_for_previous()
    size, half = size8 * 8, half8 * 8
    queries, keys = tl.cdiv(tokens * heads, ROWS), tl.cdiv(tokens * kv_heads, ROWS)
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)[None, :]
    if program < queries:
        row = program * ROWS + tl.arange(0, ROWS)
        inside = (row < tokens * heads)[:, None] & (column < size)
        start = query_ptr + _offset(row, heads, query_stride8, size)
        x = turned(
            start, row // heads, column, inside, query_weight_ptr, positions_ptr, cos_sin_ptr, size, half, eps,
            offset, NORM, INTERLEAVED,
        )  # fmt: skip
        tl.debug_barrier()  # a number is read by the thread of its pair too
        tl.store(start + column, x, mask=inside)
        return
    of_keys = program < queries + keys
    row = (program - queries - tl.where(of_keys, 0, keys)) * ROWS + tl.arange(0, ROWS)
    token = row // kv_heads
    inside = (row < tokens * kv_heads)[:, None] & (column < size)
    slot = tl.load(slot_mapping_ptr + token, mask=token < tokens, other=-1)
    target = (slot * kv_heads + row % kv_heads)[:, None] * size + column
    written = inside & (slot >= 0)[:, None]
    if of_keys:
        x = turned(
            key_ptr + _offset(row, kv_heads, key_stride8, size), token, column, inside, key_weight_ptr, positions_ptr,
            cos_sin_ptr, size, half, eps, offset, NORM, INTERLEAVED,
        )  # fmt: skip
        tl.store(key_cache_ptr + target, _encoded(x, key_inverse_scale, key_cache_ptr.dtype.element_ty), mask=written)
    else:
        x = tl.load(value_ptr + _offset(row, kv_heads, value_stride8, size) + column, mask=inside, other=0.0)
        tl.store(
            value_cache_ptr + target, _encoded(x, value_inverse_scale, value_cache_ptr.dtype.element_ty), mask=written
        )


@triton.jit
def _offset(row, heads, stride8, size):
    """Where the heads of tokens begin: [ROWS, 1]."""
    return ((row // heads).to(tl.int64) * (stride8 * 8) + row % heads * size)[:, None]


@triton.jit
def turned(
    start,  # [ROWS, 1] of each head
    token,  # [ROWS]
    column,  # [1, BLOCK]
    inside,
    weight_ptr,
    positions_ptr,
    cos_sin_ptr,
    size,
    half,
    eps,
    offset,
    NORM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Heads as they go into attention, [ROWS, BLOCK] in their own dtype."""
    if INTERLEAVED:
        first, pair, angle = column % 2 == 0, column ^ 1, column // 2
    else:
        first = column < half
        pair, angle = tl.where(first, column + half, column - half), tl.where(first, column, column - half)
    turning = inside & (column < 2 * half)
    x = tl.load(start + column, mask=inside, other=0.0)
    other = tl.load(start + pair, mask=turning, other=0.0)  # what it turns with, from the L1 cache
    if NORM:
        long = x.to(tl.float32)
        scale = tl.rsqrt(tl.sum(long * long, axis=1) / size + eps)[:, None]
        x = normed(x, scale, tl.load(weight_ptr + column, mask=column < size, other=0.0), offset)
        other = normed(other, scale, tl.load(weight_ptr + pair, mask=column < 2 * half, other=0.0), offset)
    position = tl.load(positions_ptr + token, mask=tl.sum(inside.to(tl.int32), axis=1) > 0, other=0)
    place = cos_sin_ptr + (position * (2 * half))[:, None] + angle
    cos = tl.load(place, mask=turning, other=1.0).to(tl.float32)
    sin = tl.load(place + half, mask=turning, other=0.0).to(tl.float32)
    other = other.to(tl.float32) * sin
    return (x.to(tl.float32) * cos + tl.where(first, -other, other)).to(x.dtype)


@triton.jit
def normed(x, scale, weight, offset):
    scaled = x.to(tl.float32) * scale
    # Rounded before the weight is applied, or with an offset only after it, as the published models do it.
    scaled = tl.where(offset == 0, scaled.to(x.dtype).to(tl.float32), scaled)
    return (scaled * (weight.to(tl.float32) + offset)).to(x.dtype)


@triton.jit
def _encoded(x, inverse_scale, TYPE: tl.constexpr):
    """`x` as the cache holds it."""
    if TYPE.primitive_bitwidth > 8:
        return x.to(TYPE)
    else:  # noqa: RET505 - Triton compiles what follows a return
        # NaN stays NaN, as in torch, so that a damaged model is noticed.
        x = tl.clamp(x.to(tl.float32) * inverse_scale, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
        return x.to(TYPE) if TYPE.is_floating() else encode_e4m3(x)
