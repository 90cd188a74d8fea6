"""Queries and latents to attention and its cache, as one Triton kernel: queries are turned in place, latents go
straight to the cache."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.latent_cache import variants
from kernels.launch import cdiv, launch
from kernels.rotary_cache.triton import normed, turned
from kernels.variants import Variant


def latent_cache(
    query: Tensor,
    latent: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    weight: Tensor,
    eps: float,
    cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    """As `reference.latent_cache`, for bfloat16 and float16 and the latents of `mla_attention.SHAPES`,
    computed in float32 and rounded where torch rounds, but for the two products of a turn.

    Head sizes and the strides between tokens are multiples of 8; the heads of a token are neighbours, and the table and
    the cache, of the query's dtype, contiguous.
    """
    tokens, heads, head_dim = query.shape
    if not tokens:
        return
    strides = (query.stride(0), latent.stride(0))
    variant = _plan(query.dtype, weight.shape[0], cos_sin.shape[1], head_dim, strides)
    launch(
        latent_cache_kernel, variant, (cdiv(tokens * heads, variants.ROWS) + cdiv(tokens, variants.TOKENS),),
        query, latent, weight, positions, cos_sin, cache, slot_mapping,
        tokens, heads, head_dim // variants.UNIT, *(stride // variants.UNIT for stride in strides), eps,
    )  # fmt: skip


@functools.cache
def _plan(dtype: torch.dtype, rank: int, rope: int, head_dim: int, strides: tuple[int, ...]) -> Variant:
    for count in (head_dim, *strides):
        assert count % variants.UNIT == 0, f"a size or stride of {count} is not a multiple of {variants.UNIT}"
    return variants.of(str(dtype).removeprefix("torch."), rank, rope)


# Positions and slots may begin anywhere in a longer tensor.
@triton.jit(
    do_not_specialize=["tokens", "heads", "size8", "query_stride8", "latent_stride8", "eps"],
    do_not_specialize_on_alignment=["positions_ptr", "slot_mapping_ptr"],
)
def latent_cache_kernel(
    query_ptr,  # [tokens, heads, size], tokens strided
    latent_ptr,  # [tokens, RANK + ROPE], tokens strided
    weight_ptr,  # [RANK]
    positions_ptr,  # [tokens]
    cos_sin_ptr,  # [max_position, ROPE], contiguous
    cache_ptr,  # [slots, RANK + ROPE], contiguous
    slot_mapping_ptr,  # [tokens]
    tokens,
    heads,
    size8,
    query_stride8,
    latent_stride8,
    eps,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    wait_for_previous()
    size = size8 * 8
    queries = tl.cdiv(tokens * heads, ROWS)
    program = tl.program_id(0)
    rotary = tl.arange(0, ROPE)[None, :]
    if program < queries:
        row = program * ROWS + tl.arange(0, ROWS)
        inside = (row < tokens * heads)[:, None] & (rotary < ROPE)
        place = (row // heads).to(tl.int64) * (query_stride8 * 8) + row % heads * size + size - ROPE
        start = query_ptr + place[:, None]
        x = turned(
            start, row // heads, rotary, inside, weight_ptr, positions_ptr, cos_sin_ptr, ROPE, ROPE // 2, eps,
            0.0, False, True,
        )  # fmt: skip
        tl.debug_barrier()  # a number is read by the thread of its pair too
        tl.store(start + rotary, x, mask=inside)
        return
    token = (program - queries) * TOKENS + tl.arange(0, TOKENS)
    given = (token < tokens)[:, None]
    start = latent_ptr + (token.to(tl.int64) * (latent_stride8 * 8))[:, None]
    slot = tl.load(slot_mapping_ptr + token, mask=token < tokens, other=-1)[:, None]
    target = cache_ptr + slot * (RANK + ROPE)
    column = tl.arange(0, RANK)[None, :]
    content = tl.load(start + column, mask=given, other=0.0)
    long = content.to(tl.float32)
    scale = tl.rsqrt(tl.sum(long * long, axis=1) / RANK + eps)[:, None]
    tl.store(target + column, normed(content, scale, tl.load(weight_ptr + column), 0.0), mask=slot >= 0)
    key = turned(
        start + RANK, token, rotary, given & (rotary < ROPE), weight_ptr, positions_ptr, cos_sin_ptr, ROPE, ROPE // 2,
        eps, 0.0, False, True,
    )  # fmt: skip
    tl.store(target + RANK + rotary, key, mask=slot >= 0)
