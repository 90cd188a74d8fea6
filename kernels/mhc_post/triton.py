"""mHC behind a sub-layer as one Triton kernel."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.launch import cdiv, launch
from kernels.mhc_post import variants
from kernels.variants import Variant


def mhc_post(x: Tensor, streams: Tensor, post: Tensor, mix: Tensor) -> Tensor:
    """As `reference.mhc_post`, for bfloat16 and float16, two or four streams, and hidden sizes that are multiples of 8.

    All tensors are contiguous.
    """
    tokens, count, hidden = streams.shape
    out = torch.empty_like(streams)
    if tokens:
        grid = (tokens, cdiv(hidden, variants.BLOCK))
        launch(
            mhc_post_kernel, _plan(streams.dtype, count, hidden), grid,
            x, streams, post, mix, out, hidden // variants.UNIT,
        )  # fmt: skip
    return out


@functools.cache
def _plan(dtype: torch.dtype, count: int, hidden: int) -> Variant:
    assert count in variants.STREAMS, f"{count} streams"
    assert hidden % variants.UNIT == 0, f"a hidden size of {hidden}"
    return variants.of(str(dtype).removeprefix("torch."), count)


@triton.jit(do_not_specialize=["hidden8"])
def mhc_post_kernel(
    x_ptr,  # [tokens, hidden]
    streams_ptr,  # [tokens, STREAMS, hidden]
    post_ptr,  # [tokens, STREAMS]
    mix_ptr,  # [tokens, STREAMS, STREAMS]
    out_ptr,  # as streams
    hidden8,
    STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    hidden = hidden8 * 8
    stream = tl.arange(0, STREAMS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    x = tl.load(x_ptr + token * hidden + column, mask=inside, other=0.0).to(tl.float32)
    next_streams = tl.load(post_ptr + token * STREAMS + stream)[:, None] * x[None, :]
    for before in tl.static_range(STREAMS):
        part = tl.load(streams_ptr + (token * STREAMS + before) * hidden + column, mask=inside, other=0.0)
        share = tl.load(mix_ptr + (token * STREAMS + before) * STREAMS + stream)
        next_streams += share[:, None] * part.to(tl.float32)[None, :]
    place = (token * STREAMS + stream[:, None]) * hidden + column[None, :]
    tl.store(out_ptr + place, next_streams.to(out_ptr.dtype.element_ty), mask=inside[None, :])
