"""mHC before a sub-layer: a product, and one Triton kernel for all that follows from it."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

from kernels.dependent_launch import wait_for_previous
from kernels.launch import launch
from kernels.mhc_pre import variants
from kernels.mhc_pre.reference import Connections
from kernels.variants import Variant


def mhc_pre(
    streams: Tensor, weight: Tensor, scale: Tensor, base: Tensor, connections: Connections
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.mhc_pre`, for bfloat16 and float16, two or four streams, and hidden sizes that are multiples of 8.

    The product with `weight` is torch's, in float32.
    """
    tokens, count, hidden = streams.shape
    x = torch.empty(tokens, hidden, dtype=streams.dtype, device=streams.device)
    post = torch.empty(tokens, count, dtype=torch.float32, device=streams.device)
    mix = torch.empty(tokens, count, count, dtype=torch.float32, device=streams.device)
    if tokens:
        projected = linear(streams.flatten(1).float(), weight)
        launch(
            mhc_pre_kernel, _plan(streams.dtype, count, hidden), (tokens,),
            streams, projected, scale, base, x, post, mix, hidden // variants.UNIT, connections.iterations,
            connections.eps, connections.norm_eps,
        )  # fmt: skip
    return x, post, mix


@functools.cache
def _plan(dtype: torch.dtype, count: int, hidden: int) -> Variant:
    assert count in variants.STREAMS, f"{count} streams"
    assert hidden % variants.UNIT == 0, f"a hidden size of {hidden}"
    return variants.of(str(dtype).removeprefix("torch."), count)


@triton.jit(do_not_specialize=["hidden8", "iterations", "eps", "norm_eps"])
def mhc_pre_kernel(
    streams_ptr,  # [tokens, STREAMS, hidden]
    projected_ptr,  # [tokens, 2 * STREAMS + STREAMS * STREAMS] float32, not yet divided by the root mean square
    scale_ptr,  # [3]
    base_ptr,  # as a token's of projected
    x_ptr,  # [tokens, hidden]
    post_ptr,  # [tokens, STREAMS]
    mix_ptr,  # [tokens, STREAMS, STREAMS]
    hidden8,
    iterations,
    eps,
    norm_eps,
    STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    hidden = hidden8 * 8
    stream = tl.arange(0, STREAMS)
    column = tl.arange(0, BLOCK)
    streams_ptr += token * STREAMS * hidden
    squares = tl.zeros([STREAMS, BLOCK], tl.float32)
    for start in range(0, hidden, BLOCK):
        inside = (start + column < hidden)[None, :]
        place = stream[:, None] * hidden + (start + column)[None, :]
        part = tl.load(streams_ptr + place, mask=inside, other=0.0).to(tl.float32)
        squares += part * part
    total = tl.sum(tl.sum(squares, axis=1), axis=0)
    rms = tl.rsqrt(total / (STREAMS * hidden) + norm_eps)

    projected_ptr += token * (2 * STREAMS + STREAMS * STREAMS)
    first = tl.load(projected_ptr + stream) * rms * tl.load(scale_ptr) + tl.load(base_ptr + stream)
    weights = tl.sigmoid(first) + eps
    second = tl.load(projected_ptr + STREAMS + stream) * rms * tl.load(scale_ptr + 1)
    post = 2 * tl.sigmoid(second + tl.load(base_ptr + STREAMS + stream))
    tl.store(post_ptr + token * STREAMS + stream, post)

    cell = stream[:, None] * STREAMS + stream[None, :]
    third = tl.load(projected_ptr + 2 * STREAMS + cell) * rms * tl.load(scale_ptr + 2)
    third += tl.load(base_ptr + 2 * STREAMS + cell)
    raised = tl.exp(third - tl.max(third, axis=1)[:, None])
    mix = raised / tl.sum(raised, axis=1)[:, None] + eps
    mix = mix / (tl.sum(mix, axis=0)[None, :] + eps)
    for _ in range(iterations - 1):
        mix = mix / (tl.sum(mix, axis=1)[:, None] + eps)
        mix = mix / (tl.sum(mix, axis=0)[None, :] + eps)
    tl.store(mix_ptr + token * STREAMS * STREAMS + cell, mix)

    for start in range(0, hidden, BLOCK):
        inside = start + column < hidden
        place = stream[:, None] * hidden + (start + column)[None, :]
        part = tl.load(streams_ptr + place, mask=inside[None, :], other=0.0).to(tl.float32)
        mixed = tl.sum(part * weights[:, None], axis=0)
        tl.store(x_ptr + token * hidden + start + column, mixed.to(x_ptr.dtype.element_ty), mask=inside)
