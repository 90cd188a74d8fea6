"""Linear for few tokens in Triton. Such a product only reads its weights: every program streams rows of them, with as
many bytes under way as the memory needs, and has the first ones brought into the L2 cache while the kernel before it
still runs. Products of more tokens are cuBLAS's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import prefetch_and_wait
from kernels.gated_activation.reference import gated_activation
from kernels.gated_activation.triton import rows_in_turn
from kernels.launch import architecture, cdiv, launch
from kernels.linear import reference, variants
from kernels.split_products import COUNTERS, arrived, finish_tile, processors
from kernels.variants import Variant


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "",
    limit: float | None = None,
    activate: Callable[..., Tensor] = gated_activation,
    out: Tensor | None = None,
) -> Tensor:
    """As `reference.linear`. In bfloat16 and float16, products of up to `variants.MOST_TOKENS` tokens are computed
    here if I is a multiple of 16; the activation is then applied to sums in float32. A product of few tiles is split
    along I and its parts are summed in order, so that equal calls give equal results."""
    (tokens, inner), outputs = x.shape, weight.shape[0]
    dtype = _NAMES.get(x.dtype)
    if dtype is None or not 0 < tokens <= variants.MOST_TOKENS or inner % variants.UNIT:
        product = reference.linear(x, weight, bias, out=out)
        return activate(product, activation, limit) if activation else product
    wide = out is not None and out.dtype is torch.float32
    variant, tiles, splits = _plan(architecture(), dtype, tokens, outputs, inner, processors(), activation, wide)
    if out is None:
        out = x.new_empty(tokens, outputs // 2 if activation else outputs)
    counters = arrived(x.device)
    parts = counters.view(torch.float32)  # anything
    if splits > 1:
        parts = torch.empty(
            splits, tiles, tokens, int(variant.options["OUTPUTS"]), dtype=torch.float32, device=x.device
        )
    launch(
        few_tokens_kernel, variant, (tiles, splits),
        x.contiguous(), weight, weight if bias is None else bias, parts, counters, out,
        tokens, outputs, inner // variants.UNIT, splits, int(bias is not None), torch.inf if limit is None else limit,
    )  # fmt: skip
    return out


_NAMES = {getattr(torch, name): name for name in variants.DTYPES}


@functools.cache
def _plan(
    arch: int, dtype: str, tokens: int, outputs: int, inner: int, processors: int, activation: str, wide: bool
) -> tuple[Variant, int, int]:
    """The variant, and how many tiles and splits."""
    tile = variants.tile_of(arch, tokens, outputs, processors)
    tiles, splits = cdiv(outputs, tile.outputs), variants.splits_of(tile, outputs, inner, processors)
    assert splits == 1 or tiles <= COUNTERS, f"{tiles} tiles in {splits} parts"
    return variants.of(dtype, tile, splits > 1, activation, wide=wide), tiles, splits


@triton.jit(do_not_specialize=["tokens", "outputs", "inner16", "splits", "has_bias", "limit"])
def few_tokens_kernel(
    x_ptr,  # [tokens, inner]
    weight_ptr,  # [outputs, inner]
    bias_ptr,  # [outputs], or anything where has_bias is 0
    parts_ptr,  # [splits, tiles, tokens, OUTPUTS] float32, or anything where SPLIT is false
    arrived_ptr,  # [tiles], zero, or anything where SPLIT is false
    out_ptr,  # [tokens, outputs], also in float32, or with ACTIVATION [tokens, outputs / 2]
    tokens,
    outputs,
    inner16,
    splits,
    has_bias,
    limit,  # of the activation; infinite where there is none
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INNER: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
    SPLIT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    AHEAD: tl.constexpr,
):
    inner = inner16 * 16
    tile = tl.program_id(0)
    token = tl.arange(0, TOKENS)
    GATED: tl.constexpr = ACTIVATION != ""
    # What lies outside is computed from the last row again, and not written.
    if GATED:
        output, known = rows_in_turn(tile * (OUTPUTS // 2), outputs // 2, OUTPUTS // 2)
    else:
        output = tile * OUTPUTS + tl.arange(0, OUTPUTS)
        output, known = tl.minimum(output, outputs - 1), output < outputs
    steps = tl.cdiv(tl.cdiv(inner, INNER), splits) * INNER
    start = tl.program_id(1) * steps
    end = tl.minimum(start + steps, inner)
    weight_row = weight_ptr + output.to(tl.int64)[:, None] * inner
    # A quarter of each row at most: more would keep the kernel before from what it reads.
    ahead = tl.minimum(start + tl.arange(0, AHEAD // 64) * 64, start + (end - start) // 4)
    prefetch_and_wait(weight_row + ahead[None, :])

    x_row = x_ptr + tl.minimum(token, tokens - 1).to(tl.int64)[:, None] * inner
    total = tl.zeros([OUTPUTS, TOKENS] if WEIGHT_FIRST else [TOKENS, OUTPUTS], tl.float32)
    for step in range(start, end, INNER):
        column = step + tl.arange(0, INNER)[None, :]
        inside = column < end
        x = tl.load(x_row + column, mask=inside, other=0.0)
        weight = tl.load(weight_row + column, mask=inside, other=0.0)
        total = tl.dot(weight, tl.trans(x), total) if WEIGHT_FIRST else tl.dot(x, tl.trans(weight), total)

    total = tl.trans(total) if WEIGHT_FIRST else total  # [TOKENS, OUTPUTS]
    added = tl.load(bias_ptr + output, mask=known & (has_bias != 0), other=0.0).to(tl.float32)[None, :]
    finish_tile(
        total, added, parts_ptr, arrived_ptr, out_ptr, tile, tokens, outputs, splits, limit,
        TOKENS, OUTPUTS, SPLIT, ACTIVATION,
    )  # fmt: skip
