"""An indexer's queries and keys to its choice and its cache, as one Triton kernel."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.float8 import encode_e4m3
from kernels.index_cache import variants
from kernels.index_cache.norm import KeyNorm
from kernels.indexer import key_bytes
from kernels.launch import architecture, cdiv, launch
from kernels.rotary_cache.triton import turned

_variant = functools.cache(variants.of)


def index_cache(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    norm: KeyNorm,
    cache: Tensor,
    slot_mapping: Tensor,
    interleaved: bool,
) -> tuple[Tensor, Tensor]:
    """As `reference.index_cache`, for bfloat16 and float16, heads of 128 numbers of which 64 turn, and a cache of
    pages.

    The stride between keys is a multiple of 8; blocks are of a power of two, at least 4.
    """
    (queries, heads, dim), tokens = query.shape, key.shape[0]
    assert (dim, cos_sin.shape[1]) == (variants.DIM, variants.ROTARY), f"{cos_sin.shape[1]} of {dim} turn"
    assert key.stride(0) % variants.UNIT == 0, f"keys {key.stride(0)} apart"
    block_size = cache.shape[1] // key_bytes(dim)
    assert block_size >= 4, f"blocks of {block_size}"
    assert block_size & (block_size - 1) == 0, f"blocks of {block_size}"
    codes = torch.empty(query.shape, dtype=torch.float8_e4m3fn, device=query.device)
    scaled = torch.empty_like(weights)
    variant = _variant(architecture(), str(query.dtype).removeprefix("torch."), interleaved)
    kind = torch.uint8 if variant.arguments[7] == "*u8" else torch.float8_e4m3fn
    if tokens:
        launch(
            index_cache_kernel, variant, (cdiv(queries * heads, variants.ROWS) + cdiv(tokens, variants.TOKENS),),
            query, key, weights, positions, cos_sin, norm.weight, norm.bias, codes.view(kind), scaled,
            cache.view(kind), cache.view(torch.float32), slot_mapping,
            queries, tokens, heads, key.stride(0) // variants.UNIT, block_size.bit_length() - 1, cache.shape[1] // 16,
            norm.eps, heads**-0.5 * dim**-0.5,
        )  # fmt: skip
    return codes, scaled


# Positions and slots may begin anywhere in a longer tensor.
@triton.jit(
    do_not_specialize=["queries", "tokens", "heads", "key_stride8", "page_shift", "page_bytes16", "eps", "factor"],
    do_not_specialize_on_alignment=["positions_ptr", "slot_mapping_ptr"],
)
def index_cache_kernel(
    query_ptr,  # [queries, heads, DIM]
    key_ptr,  # [tokens, DIM], tokens strided
    weights_ptr,  # [queries, heads] float32
    positions_ptr,  # [tokens]
    cos_sin_ptr,  # [max_position, ROTARY], contiguous
    norm_weight_ptr,  # [DIM] float32
    norm_bias_ptr,  # the same
    codes_ptr,  # [queries, heads, DIM]
    scaled_ptr,  # [queries, heads] float32
    keys_ptr,  # the cache, byte by byte
    scales_ptr,  # the cache in float32
    slot_mapping_ptr,  # [tokens]
    queries,
    tokens,
    heads,
    key_stride8,
    page_shift,
    page_bytes16,
    eps,
    factor,
    DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    wait_for_previous()
    of_queries = tl.cdiv(queries * heads, ROWS)
    program = tl.program_id(0)
    column = tl.arange(0, DIM)[None, :]
    TYPE: tl.constexpr = codes_ptr.dtype.element_ty
    if program < of_queries:
        row = program * ROWS + tl.arange(0, ROWS)
        given = row < queries * heads
        inside = given[:, None] & (column < DIM)
        place = row.to(tl.int64)[:, None] * DIM
        x = turned(
            query_ptr + place, row // heads, column, inside, norm_weight_ptr, positions_ptr, cos_sin_ptr, DIM,
            ROTARY // 2, eps, 0.0, False, INTERLEAVED,
        )  # fmt: skip
        x, scale = scaled(transformed(x, DIM))
        tl.store(codes_ptr + place + column, encoded(x, TYPE), mask=inside)
        weight = tl.load(weights_ptr + row, mask=given, other=0.0)
        tl.store(scaled_ptr + row, weight * factor * scale, mask=given)
        return
    token = (program - of_queries) * TOKENS + tl.arange(0, TOKENS)
    given = token < tokens
    inside = given[:, None] & (column < DIM)
    if INTERLEAVED:
        first, pair, angle = column % 2 == 0, column ^ 1, column // 2
    else:
        first = column < ROTARY // 2
        pair, angle = tl.where(first, column + ROTARY // 2, column - ROTARY // 2), column % (ROTARY // 2)
    turning = inside & (column < ROTARY)
    start = key_ptr + token.to(tl.int64)[:, None] * (key_stride8 * 8)
    given_key = tl.load(start + column, mask=inside, other=0.0)
    long = given_key.to(tl.float32)
    mean = tl.sum(long, axis=1)[:, None] / DIM
    spread = tl.where(inside, long - mean, 0.0)
    inverse = tl.rsqrt(tl.sum(spread * spread, axis=1) / DIM + eps)[:, None]
    weight, bias = tl.load(norm_weight_ptr + column), tl.load(norm_bias_ptr + column)
    x = (spread * inverse * weight + bias).to(given_key.dtype).to(tl.float32)
    # What it turns with, from the L1 cache.
    other = tl.load(start + pair, mask=turning, other=0.0).to(tl.float32)
    weight = tl.load(norm_weight_ptr + pair, mask=column < ROTARY, other=0.0)
    bias = tl.load(norm_bias_ptr + pair, mask=column < ROTARY, other=0.0)
    other = ((other - mean) * inverse * weight + bias).to(given_key.dtype).to(tl.float32)
    position = tl.load(positions_ptr + token, mask=given, other=0)[:, None]
    cos = tl.load(cos_sin_ptr + position * ROTARY + angle, mask=turning, other=1.0).to(tl.float32)
    sin = tl.load(cos_sin_ptr + position * ROTARY + ROTARY // 2 + angle, mask=turning, other=0.0).to(tl.float32)
    x = (x * cos + tl.where(first, -other, other) * sin).to(given_key.dtype)
    x, scale = scaled(transformed(x, DIM))

    slot = tl.load(slot_mapping_ptr + token, mask=given, other=-1)
    written = slot >= 0
    page, offset = slot >> page_shift, slot & ((1 << page_shift) - 1)
    target = keys_ptr + (page * (page_bytes16 * 16) + offset * DIM)[:, None]
    tl.store(target + column, encoded(x, TYPE), mask=written[:, None] & (column < DIM))
    # Scales lie behind all keys of a page.
    of_scales = page * (page_bytes16 * 4) + ((DIM // 4) << page_shift) + offset
    tl.store(scales_ptr + of_scales, scale, mask=written)


@triton.jit
def transformed(x, DIM: tl.constexpr):
    """[ROWS, DIM] through the Hadamard transform, rounded to its dtype."""
    shared = tl.arange(0, DIM)[:, None] & tl.arange(0, DIM)[None, :]
    shared ^= shared >> 4
    shared ^= shared >> 2
    shared ^= shared >> 1
    signs = tl.where(shared & 1 == 1, -1.0, 1.0).to(x.dtype)  # the parity of the bits that both numbers have
    return (tl.dot(x, signs) * (1.0 / tl.sqrt(DIM * 1.0))).to(x.dtype).to(tl.float32)


@triton.jit
def scaled(x):
    """Rows divided by a power of two, so that e4m3 holds them; and what they were divided by."""
    largest = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-4)
    bits = (largest * (1.0 / 448.0)).to(tl.int32, bitcast=True)
    scale = ((bits + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    return tl.clamp(x / scale[:, None], -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL), scale


@triton.jit
def encoded(x, TYPE: tl.constexpr):
    return x.to(TYPE) if TYPE.is_floating() else encode_e4m3(x)
