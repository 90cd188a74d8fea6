"""Queries and entries of DeepSeek-V4's attention as one Triton kernel, and the turning of their last numbers, which
other kernels share."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.launch import cdiv, launch
from kernels.packed_entries.variants import DIM, ROPE
from kernels.window_entries import variants

_of = functools.cache(variants.of)


def window_entries(
    query: Tensor, entry: Tensor, positions: Tensor, cos_sin: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """As `reference.window_entries`, for bfloat16 and float16, heads of 512 numbers of which 64 turn, and a table in
    float32. `query` is contiguous; entries may be strided, by a multiple of 8."""
    (tokens, heads, dim), rope_dim = query.shape, cos_sin.shape[1]
    assert (dim, rope_dim) == (DIM, ROPE), f"{rope_dim} of {dim} turn"
    assert entry.stride(0) % 8 == 0, f"entries {entry.stride(0)} apart"
    queries, entries = torch.empty_like(query), query.new_empty(tokens, dim)
    if tokens:
        launch(
            window_entries_kernel, _of(str(query.dtype).removeprefix("torch.")),
            (cdiv(tokens * heads, variants.ROWS) + cdiv(tokens, variants.ROWS),),
            query, entry, weight, positions, cos_sin, queries, entries, tokens, heads, entry.stride(0) // 8, eps,
        )  # fmt: skip
    return queries, entries


# Positions may begin anywhere in a longer tensor.
@triton.jit(
    do_not_specialize=["tokens", "heads", "entry_stride8", "eps"], do_not_specialize_on_alignment=["positions_ptr"]
)
def window_entries_kernel(
    query_ptr,  # [tokens, heads, DIM]
    entry_ptr,  # [tokens, DIM], tokens strided
    weight_ptr,  # [DIM]
    positions_ptr,  # [tokens]
    cos_sin_ptr,  # [max_position, ROPE] float32
    queries_ptr,  # [tokens, heads, DIM]
    entries_ptr,  # [tokens, DIM]
    tokens,
    heads,
    entry_stride8,
    eps,
    DIM: tl.constexpr,
    ROPE: tl.constexpr,
    ROWS: tl.constexpr,
):
    wait_for_previous()
    of_queries = tl.cdiv(tokens * heads, ROWS)
    program = tl.program_id(0)
    column = tl.arange(0, DIM)[None, :]
    TYPE: tl.constexpr = query_ptr.dtype.element_ty
    if program < of_queries:
        row = program * ROWS + tl.arange(0, ROWS)
        token = row // heads
        inside = (row < tokens * heads)[:, None]
        place = row.to(tl.int64)[:, None] * DIM + column
        x = tl.load(query_ptr + place, mask=inside, other=0.0).to(tl.float32)
        x = (x * tl.rsqrt(tl.sum(x * x, axis=1) / DIM + eps)[:, None]).to(TYPE).to(tl.float32)
        target = queries_ptr + place
    else:
        token = (program - of_queries) * ROWS + tl.arange(0, ROWS)
        inside = (token < tokens)[:, None]
        start = token.to(tl.int64)[:, None]
        x = tl.load(entry_ptr + start * (entry_stride8 * 8) + column, mask=inside, other=0.0).to(tl.float32)
        x = normed(x, weight_ptr, eps, TYPE)
        target = entries_ptr + start * DIM + column
    position = tl.load(positions_ptr + token, mask=token < tokens, other=0)[:, None]
    x = turned_last(x, cos_sin_ptr + position * ROPE, ROPE, BACK=False)
    tl.store(target, x.to(TYPE), mask=inside)


@triton.jit
def normed(x, weight_ptr, eps, TYPE: tl.constexpr):
    """`x` [N, DIM] float32, each row divided by its root mean square, times the weights [DIM]; both are rounded to
    `TYPE`, as `rms_norm` does."""
    dim: tl.constexpr = x.shape[1]
    weight = tl.load(weight_ptr + tl.arange(0, dim))[None, :].to(tl.float32)
    x = (x * tl.rsqrt(tl.sum(x * x, axis=1) / dim + eps)[:, None]).to(TYPE).to(tl.float32)
    return (x * weight).to(TYPE).to(tl.float32)


@triton.jit
def turned_last(x, angles, ROPE: tl.constexpr, BACK: tl.constexpr):
    """`x` [N, DIM] float32 with the last `ROPE` numbers of each row turned in neighbouring pairs. `angles` [N, 1] are
    pointers to the ROPE / 2 cosines and then the sines of a row's position, or one for all rows."""
    count: tl.constexpr = x.shape[0]
    dim: tl.constexpr = x.shape[1]
    pair = tl.arange(0, dim // 2)[None, :] - (dim - ROPE) // 2
    cos = tl.load(angles + pair, mask=pair >= 0, other=1.0)
    sin = tl.load(angles + ROPE // 2 + pair, mask=pair >= 0, other=0.0)
    if BACK:
        sin = -sin
    first, second = tl.split(tl.reshape(x, [count, dim // 2, 2]))
    return tl.reshape(tl.join(first * cos - second * sin, second * cos + first * sin), [count, dim])
