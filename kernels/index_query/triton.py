"""An indexer's queries as one Triton kernel."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.index_cache.triton import encoded, scaled, transformed
from kernels.index_cache.variants import DIM, ROTARY
from kernels.index_query import variants
from kernels.indexer import key_bytes
from kernels.launch import architecture, cdiv, launch
from kernels.mxfp4 import encoded as encoded_mxfp4
from kernels.window_entries.triton import turned_last

_of = functools.cache(variants.of)


def index_query(
    query: Tensor, weights: Tensor, positions: Tensor, cos_sin: Tensor, cache: Tensor, mxfp4: bool = False
) -> tuple[Tensor, Tensor]:
    """As `reference.index_query`, for bfloat16 and float16, heads of 128 numbers of which 64 turn, a table in float32,
    and a cache of pages."""
    tokens, heads, dim = query.shape
    assert (dim, cos_sin.shape[1]) == (DIM, ROTARY), f"{cos_sin.shape[1]} of {dim} turn"
    assert cache.dtype == torch.uint8, f"keys in {cache.dtype}"
    if mxfp4:
        codes = torch.empty((tokens, heads * key_bytes(dim, mxfp4)), dtype=torch.uint8, device=query.device)
    else:
        codes = torch.empty(query.shape, dtype=torch.float8_e4m3fn, device=query.device)
    out = weights.new_empty(tokens, heads)
    variant = _of(architecture(), str(query.dtype).removeprefix("torch."), mxfp4)
    kind = torch.uint8 if variant.arguments[4] == "*u8" else torch.float8_e4m3fn
    if tokens:
        launch(
            index_query_kernel, variant, (cdiv(tokens * heads, int(variant.options["ROWS"])),),
            query, weights, positions, cos_sin, codes.view(kind), out, tokens, heads, weights.stride(0),
            heads**-0.5 * dim**-0.5,
        )  # fmt: skip
    return codes, out


# Positions may begin anywhere in a longer tensor.
@triton.jit(do_not_specialize=["tokens", "heads", "stride", "factor"], do_not_specialize_on_alignment=["positions_ptr"])
def index_query_kernel(
    query_ptr,  # [tokens, heads, DIM]
    weights_ptr,  # [tokens, heads] float32, rows strided
    positions_ptr,  # [tokens]
    cos_sin_ptr,  # [max_position, ROPE] float32
    codes_ptr,  # [tokens, heads, DIM], or of each token heads in MXFP4 and then their exponents
    out_ptr,  # [tokens, heads] float32
    tokens,
    heads,
    stride,  # of the weights
    factor,
    DIM: tl.constexpr,
    ROPE: tl.constexpr,
    ROWS: tl.constexpr,
    MXFP4: tl.constexpr,
):
    wait_for_previous()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < tokens * heads
    place = row.to(tl.int64)[:, None] * DIM + tl.arange(0, DIM)[None, :]
    given = tl.load(query_ptr + place, mask=inside[:, None], other=0.0)
    position = tl.load(positions_ptr + row // heads, mask=inside, other=0)[:, None]
    x = turned_last(given.to(tl.float32), cos_sin_ptr + position * ROPE, ROPE, BACK=False).to(given.dtype)
    x = transformed(x, DIM)
    weight = tl.load(weights_ptr + (row // heads).to(tl.int64) * stride + row % heads, mask=inside, other=0.0) * factor
    if MXFP4:
        of_token, head = (row // heads).to(tl.int64) * (heads * (DIM // 2 + DIM // 32)), row % heads
        codes, exponents = encoded_mxfp4(x, ROWS, DIM)
        byte, group = tl.arange(0, DIM // 2)[None, :], tl.arange(0, DIM // 32)[None, :]
        tl.store(codes_ptr + (of_token + head * (DIM // 2))[:, None] + byte, codes, mask=inside[:, None])
        place = of_token + heads * (DIM // 2) + head * (DIM // 32)
        tl.store(codes_ptr + place[:, None] + group, exponents, mask=inside[:, None])
    else:
        code, scale = scaled(x)
        tl.store(codes_ptr + place, encoded(code, codes_ptr.dtype.element_ty), mask=inside[:, None])
        weight *= scale
    tl.store(out_ptr + row, weight, mask=inside)
