"""mHC before a sub-layer in Triton: a product, and a kernel for all that follows from it. The product of many tokens is
torch's."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

from kernels.dependent_launch import prefetch_and_wait, wait_for_previous
from kernels.launch import cdiv, launch
from kernels.mhc_pre import variants
from kernels.mhc_pre.reference import Connections
from kernels.variants import Variant


def mhc_pre(
    streams: Tensor, weight: Tensor, scale: Tensor, base: Tensor, connections: Connections
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.mhc_pre`, for bfloat16 and float16, two or four streams, and hidden sizes that are multiples of 8.

    All tensors are contiguous.
    """
    tokens, count, hidden = streams.shape
    x = torch.empty(tokens, hidden, dtype=streams.dtype, device=streams.device)
    post = torch.empty(tokens, count, dtype=torch.float32, device=streams.device)
    mix = torch.empty(tokens, count, count, dtype=torch.float32, device=streams.device)
    if tokens:
        few = tokens <= variants.MOST_TOKENS
        variant = _plan(streams.dtype, count, hidden, few)
        parts = cdiv(count * hidden, variants.SLICE) if few else 1
        if few:
            rows = weight.shape[0] + 1
            product = torch.empty(tokens, parts, rows, dtype=torch.float32, device=streams.device)
            launch(
                project_kernel, _project(streams.dtype, count), (parts, cdiv(tokens, variants.TOGETHER)),
                streams, weight, product, tokens, count * hidden // variants.UNIT,
            )  # fmt: skip
        else:
            product = linear(streams.flatten(1).float(), weight)
        # The last program of a token has the mix.
        launch(
            mhc_pre_kernel, variant, (cdiv(hidden, variants.BLOCK) + 1, tokens) if few else (1, tokens),
            streams, product, scale, base, x, post, mix,
            hidden // variants.UNIT, parts, connections.iterations,
            connections.eps, connections.norm_eps,
        )  # fmt: skip
    return x, post, mix


@functools.cache
def _plan(dtype: torch.dtype, count: int, hidden: int, few: bool) -> Variant:
    assert count in variants.STREAMS, f"{count} streams"
    assert hidden % variants.UNIT == 0, f"a hidden size of {hidden}"
    return variants.of(str(dtype).removeprefix("torch."), count, few)


@functools.cache
def _project(dtype: torch.dtype, count: int) -> Variant:
    return variants.project("mhc_pre", str(dtype).removeprefix("torch."), variants.rows_of(count))


@triton.jit(do_not_specialize=["tokens", "inner8"])
def project_kernel(
    streams_ptr,  # [tokens, inner]
    weight_ptr,  # [ROWS, inner] float32
    out_ptr,  # [tokens, parts, ROWS + 1] float32: parts of the product, and of the sum of squares behind it
    tokens,
    inner8,
    ROWS: tl.constexpr,
    PADDED: tl.constexpr,
    SLICE: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    inner = inner8 * 8
    row = tl.arange(0, PADDED)
    column = tl.program_id(0) * SLICE + tl.arange(0, SLICE)
    inside = column < inner
    weight_ptr += row[:, None] * inner
    lines = tl.minimum(tl.program_id(0) * SLICE + tl.arange(0, SLICE // 32) * 32, inner - 1)
    prefetch_and_wait(tl.where((row < ROWS)[:, None], weight_ptr, weight_ptr - row[:, None] * inner) + lines[None, :])
    weight = tl.load(weight_ptr + column[None, :], mask=(row < ROWS)[:, None] & inside[None, :], other=0.0)
    first = tl.program_id(1) * TOGETHER
    for behind in range(tl.minimum(TOGETHER, tokens - first)):
        token = (first + behind).to(tl.int64)
        x = tl.load(streams_ptr + token * inner + column, mask=inside, other=0.0).to(tl.float32)
        # Behind the rows the streams themselves.
        total = tl.sum(tl.where((row == ROWS)[:, None], x[None, :], weight) * x[None, :], axis=1)
        place = (token * tl.num_programs(0) + tl.program_id(0)) * (ROWS + 1)
        tl.store(out_ptr + place + row, total, mask=row <= ROWS)


@triton.jit(do_not_specialize=["hidden8", "parts", "iterations", "eps", "norm_eps"])
def mhc_pre_kernel(
    streams_ptr,  # [tokens, STREAMS, hidden]
    product_ptr,  # [tokens, 2 * STREAMS + STREAMS * STREAMS] float32; with FEW as `project_kernel` leaves it
    scale_ptr,  # [3]
    base_ptr,  # [2 * STREAMS + STREAMS * STREAMS]
    x_ptr,  # [tokens, hidden]
    post_ptr,  # [tokens, STREAMS]
    mix_ptr,  # [tokens, STREAMS, STREAMS]
    hidden8,
    parts,
    iterations,
    eps,
    norm_eps,
    STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,  # a token has programs of its own for each block, and for the mix
):
    wait_for_previous()
    token = tl.program_id(1).to(tl.int64)
    hidden = hidden8 * 8
    stream = tl.arange(0, STREAMS)
    ROWS: tl.constexpr = 2 * STREAMS + STREAMS * STREAMS
    streams_ptr += token * STREAMS * hidden
    product_ptr += token * parts * (ROWS + FEW)
    rms = inverse_rms(streams_ptr, product_ptr + ROWS, parts, ROWS + 1, hidden, norm_eps, STREAMS, BLOCK, FEW)

    blocks = tl.num_programs(0) - 1
    if (not FEW) | (tl.program_id(0) == blocks):
        second = summed(product_ptr, STREAMS + stream, parts, ROWS + FEW) * rms * tl.load(scale_ptr + 1)
        post = 2 * tl.sigmoid(second + tl.load(base_ptr + STREAMS + stream))
        tl.store(post_ptr + token * STREAMS + stream, post)
        cell = tl.arange(0, STREAMS * STREAMS)
        third = summed(product_ptr, 2 * STREAMS + cell, parts, ROWS + FEW) * rms * tl.load(scale_ptr + 2)
        third = tl.reshape(third + tl.load(base_ptr + 2 * STREAMS + cell), [STREAMS, STREAMS])
        raised = tl.exp(third - tl.max(third, axis=1)[:, None])
        mix = raised / tl.sum(raised, axis=1)[:, None] + eps
        mix = mix / (tl.sum(mix, axis=0)[None, :] + eps)
        for _ in range(iterations - 1):
            mix = mix / (tl.sum(mix, axis=1)[:, None] + eps)
            mix = mix / (tl.sum(mix, axis=0)[None, :] + eps)
        at = stream[:, None] * STREAMS + stream[None, :]
        tl.store(mix_ptr + token * STREAMS * STREAMS + at, mix)
    if (not FEW) | (tl.program_id(0) < blocks):
        first = summed(product_ptr, stream, parts, ROWS + FEW) * rms * tl.load(scale_ptr)
        weights = tl.sigmoid(first + tl.load(base_ptr + stream)) + eps
        begin = tl.program_id(0) * BLOCK
        weigh(streams_ptr, x_ptr + token * hidden, weights, begin, begin + BLOCK if FEW else hidden, hidden, BLOCK)


@triton.jit
def inverse_rms(
    streams_ptr, squares_ptr, parts, stride, hidden, norm_eps, STREAMS: tl.constexpr, BLOCK: tl.constexpr,
    FEW: tl.constexpr,
):  # fmt: skip
    """1 over the root mean square of a token's streams; with FEW of the parts of their squares."""
    if FEW:
        total = tl.sum(summed(squares_ptr, tl.zeros((1,), tl.int32), parts, stride))
    else:
        stream = tl.arange(0, STREAMS)
        wide = tl.zeros([STREAMS, BLOCK], tl.float32)
        for start in range(0, hidden, BLOCK):
            column = start + tl.arange(0, BLOCK)
            place = stream[:, None] * hidden + column[None, :]
            part = tl.load(streams_ptr + place, mask=(column < hidden)[None, :], other=0.0).to(tl.float32)
            wide += part * part
        total = tl.sum(tl.sum(wide, axis=1), axis=0)
    return tl.rsqrt(total / (STREAMS * hidden) + norm_eps)


@triton.jit
def summed(product_ptr, row, parts, stride):
    """Rows [N] of a product, of so many parts."""
    total = tl.zeros(row.shape, tl.float32)
    STEP: tl.constexpr = 64
    for first in range(0, parts, STEP):
        part = first + tl.arange(0, STEP)
        place = part[:, None] * stride + row[None, :]
        total += tl.sum(tl.load(product_ptr + place, mask=(part < parts)[:, None], other=0.0), axis=0)
    return total


@triton.jit
def weigh(streams_ptr, x_ptr, weights, begin, end, hidden, BLOCK: tl.constexpr):
    """The sum of a token's streams by `weights`, some blocks of it."""
    stream = tl.arange(0, weights.shape[0])
    for start in range(begin, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < hidden
        place = stream[:, None] * hidden + column[None, :]
        part = tl.load(streams_ptr + place, mask=inside[None, :], other=0.0).to(tl.float32)
        mixed = tl.sum(part * weights[:, None], axis=0)
        tl.store(x_ptr + column, mixed.to(x_ptr.dtype.element_ty), mask=inside)
