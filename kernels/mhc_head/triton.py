"""mHC behind the last layer in Triton, from the parts of a product as `mhc_pre` has them."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

from kernels.dependent_launch import wait_for_previous
from kernels.launch import cdiv, launch
from kernels.mhc_head import variants
from kernels.mhc_pre.triton import inverse_rms, project_kernel, summed, weigh
from kernels.mhc_pre.variants import BLOCK, MOST_TOKENS, SLICE, STREAMS, TOGETHER, UNIT, project
from kernels.variants import Variant


def mhc_head(streams: Tensor, weight: Tensor, scale: Tensor, base: Tensor, eps: float, norm_eps: float) -> Tensor:
    """As `reference.mhc_head`, for bfloat16 and float16, two or four streams, and hidden sizes that are multiples of 8.

    All tensors are contiguous.
    """
    tokens, count, hidden = streams.shape
    out = torch.empty(tokens, hidden, dtype=streams.dtype, device=streams.device)
    if tokens:
        few = tokens <= MOST_TOKENS
        projecting, variant = _plan(streams.dtype, count, hidden, few)
        parts = cdiv(count * hidden, SLICE) if few else 1
        if few:
            product = torch.empty(tokens, parts, count + 1, dtype=torch.float32, device=streams.device)
            launch(
                project_kernel, projecting, (parts, cdiv(tokens, TOGETHER)),
                streams, weight, product, tokens, count * hidden // UNIT,
            )  # fmt: skip
        else:
            product = linear(streams.flatten(1).float(), weight)
        launch(
            mhc_head_kernel, variant, (cdiv(hidden, BLOCK) if few else 1, tokens),
            streams, product, scale, base, out, hidden // UNIT, parts, eps, norm_eps,
        )  # fmt: skip
    return out


@functools.cache
def _plan(dtype: torch.dtype, count: int, hidden: int, few: bool) -> tuple[Variant, Variant]:
    assert count in STREAMS, f"{count} streams"
    assert hidden % UNIT == 0, f"a hidden size of {hidden}"
    name = str(dtype).removeprefix("torch.")
    return project(variants.OP, name, count), variants.of(name, count, few)


@triton.jit(do_not_specialize=["hidden8", "parts", "eps", "norm_eps"])
def mhc_head_kernel(
    streams_ptr,  # [tokens, STREAMS, hidden]
    product_ptr,  # [tokens, STREAMS] float32; with FEW as `mhc_pre.triton.project_kernel` leaves it
    scale_ptr,  # [1]
    base_ptr,  # [STREAMS]
    out_ptr,  # [tokens, hidden]
    hidden8,
    parts,
    eps,
    norm_eps,
    STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,  # a token has a program for each block
):
    wait_for_previous()
    token = tl.program_id(1).to(tl.int64)
    hidden = hidden8 * 8
    stream = tl.arange(0, STREAMS)
    streams_ptr += token * STREAMS * hidden
    product_ptr += token * parts * (STREAMS + FEW)
    rms = inverse_rms(streams_ptr, product_ptr + STREAMS, parts, STREAMS + 1, hidden, norm_eps, STREAMS, BLOCK, FEW)
    product = summed(product_ptr, stream, parts, STREAMS + FEW) * rms * tl.load(scale_ptr)
    weights = tl.sigmoid(product + tl.load(base_ptr + stream)) + eps
    begin = tl.program_id(0) * BLOCK
    weigh(streams_ptr, out_ptr + token * hidden, weights, begin, begin + BLOCK if FEW else hidden, hidden, BLOCK)
