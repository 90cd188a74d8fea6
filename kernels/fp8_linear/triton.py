"""Block-scaled FP8 linear in Triton: rounded activations times FP8 weights, each step of 128 by its own scales.

A product of few tokens only reads its weights. From sm_90 on it has a kernel that does that as `kernels/linear` does:
by activations as they are, with the first weights on their way while the kernel before it still runs, and without a
second launch that sums what is split.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import prefetch_and_wait, wait_for_previous
from kernels.float8 import decode_e4m3
from kernels.fp8_linear import GROUP, variants
from kernels.fp8_linear.rounded import Rounded, rows_of
from kernels.gated_activation.reference import gated_activation
from kernels.gated_activation.triton import rows_in_turn
from kernels.launch import architecture, cdiv, launch
from kernels.split_products import COUNTERS, arrived, finish_tile, processors
from kernels.variants import Variant

_of = functools.cache(variants.of)
_rounding = functools.cache(variants.rounding)
_reduce = functools.cache(variants.reduce)
_GROUP = tl.constexpr(GROUP)
_LARGEST = tl.constexpr(448.0)  # of float8_e4m3fn


def fp8_linear(
    x: Tensor | Rounded,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    activation: str = "",
    limit: float | None = None,
    activate: Callable[..., Tensor] = gated_activation,
    *,
    groups: int = 1,
) -> Tensor:
    """As `reference.fp8_linear`, for bfloat16 and float16. I and O are multiples of 16; where there are groups, I and
    the rows of each are multiples of 128. The activation is applied to the sums in float32 where there are few tokens,
    and gate and up share no block of scales.

    From sm_89 on `x` is rounded to FP8 as by `reference.quantise`, if it was not yet; before sm_89, and where it has
    at most `variants.FEW_TOKENS` rows from sm_90 on, it is multiplied as it is. A product of few tiles is split along I
    and its parts are summed in order, so that equal calls give equal results.
    """
    arch, given = architecture(), x
    x = rows_of(given)
    tokens, (outputs, inner) = x.shape[0], weight.shape
    assert x.shape[1] == groups * inner, f"{x.shape[1]} numbers for {groups} groups of {inner}"
    few = variants.are_few(arch, tokens)
    if activation and not (few and tokens and outputs % (2 * GROUP) == 0):
        return activate(fp8_linear(given, weight, weight_scale, bias), activation, limit)
    out = x.new_empty(tokens, outputs // 2 if activation else outputs)
    if not tokens:
        return out
    assert inner % variants.UNIT == 0, f"rows of {inner}"
    assert outputs % variants.UNIT == 0, f"{outputs} outputs"
    assert groups == 1 or not (inner % GROUP or outputs % (groups * GROUP)), f"{outputs} x {inner} in {groups} groups"
    dtype, x = str(x.dtype).removeprefix("torch."), x.contiguous()
    if few:
        _few_tokens(x, weight, weight_scale, bias, groups, activation, torch.inf if limit is None else limit, out)
        return out
    tile = variants.tile_of(arch, tokens, outputs, groups)
    splits = variants.splits_of(tile, tokens, outputs, inner)
    scale = weight_scale
    if variants.activation_mode(arch, tile.block_m) == "rounded":
        x, scale = rounded(given)
    if not variants.has_fp8(arch):
        weight = weight.view(torch.uint8)
    target = out if splits == 1 else x.new_empty(splits, tokens, outputs, dtype=torch.float32)
    launch(
        fp8_linear_kernel, _of(arch, dtype, tile, splits > 1),
        (cdiv(tokens, tile.block_m) * cdiv(outputs, 2 * tile.block_n), splits),
        x, scale, weight, weight_scale, out if bias is None else bias, target,
        tokens, outputs // variants.UNIT, inner // variants.UNIT, groups, splits, int(bias is not None),
    )  # fmt: skip
    if splits > 1:
        launch(
            reduce_kernel, _reduce(dtype), (cdiv(tokens * outputs, variants.REDUCE_BLOCK),),
            target, out if bias is None else bias, out,
            tokens, outputs // variants.UNIT, splits, int(bias is not None),
        )  # fmt: skip
    return out


def _few_tokens(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    groups: int,
    activation: str,
    limit: float,
    out: Tensor,
) -> None:
    tokens, (outputs, inner) = x.shape[0], weight.shape
    variant, tiles, splits = _plan_of_few(architecture(), x.dtype, outputs, inner, processors(), activation)
    counters = arrived(x.device)
    parts = counters.view(torch.float32)  # anything
    if splits > 1:
        width = int(variant.options["OUTPUTS"])
        parts = torch.empty(splits, tiles, tokens, width, dtype=torch.float32, device=x.device)
    launch(
        few_tokens_kernel, variant, (tiles, splits),
        x, weight, weight_scale, x if bias is None else bias, parts, counters, out,
        tokens, outputs // variants.UNIT, inner // variants.UNIT, groups, splits, int(bias is not None), limit,
    )  # fmt: skip


@functools.cache
def _plan_of_few(
    arch: int, dtype: torch.dtype, outputs: int, inner: int, processors: int, activation: str
) -> tuple[Variant, int, int]:
    """The variant, and how many tiles and splits."""
    tile = variants.FEW[arch]
    tiles, splits = cdiv(outputs, tile.outputs), variants.splits_of_few(tile, outputs, inner, processors)
    assert splits == 1 or tiles <= COUNTERS, f"{tiles} tiles in {splits} parts"
    return variants.of_few(str(dtype).removeprefix("torch."), tile, splits > 1, activation), tiles, splits


def rounded(x: Tensor | Rounded) -> tuple[Tensor, Tensor]:
    """As `quantise`, which has been done to some."""
    if isinstance(x, Rounded) and x.values is not None and x.scale is not None:
        return x.values, x.scale
    return quantise(rows_of(x).contiguous())


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """As `reference.quantise`, with the scales transposed: [ceil(I / 128), T]."""
    tokens, inner = x.shape
    groups = cdiv(inner, GROUP)
    out = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(groups, tokens, dtype=torch.float32, device=x.device)
    launch(
        quantise_kernel, _rounding(str(x.dtype).removeprefix("torch.")),
        (tokens * cdiv(groups, variants.ROUNDED_GROUPS),),
        x, out, scale, tokens, inner // variants.UNIT,
    )  # fmt: skip
    return out, scale


@triton.jit(do_not_specialize=["tokens", "inner16"])
def quantise_kernel(
    x_ptr,  # [tokens, inner]
    out_ptr,  # [tokens, inner] FP8
    scale_ptr,  # [ceil(inner / 128), tokens]
    tokens,
    inner16,
    GROUPS: tl.constexpr,
):
    wait_for_previous()
    inner = inner16 * 16
    parts = tl.cdiv(inner, GROUPS * _GROUP)
    token = (tl.program_id(0) // parts).to(tl.int64)
    group = tl.program_id(0) % parts * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
    inside = column < inner
    x = tl.load(x_ptr + token * inner + column, mask=inside, other=0.0)
    rounded, scale = rounded_to_fp8(x)
    tl.store(out_ptr + token * inner + column, rounded, mask=inside)
    tl.store(scale_ptr + group.to(tl.int64) * tokens + token, scale, mask=group * _GROUP < inner)


@triton.jit(do_not_specialize=["tokens", "outputs16", "inner16", "groups", "splits", "has_bias", "limit"])
def few_tokens_kernel(
    x_ptr,  # [tokens, groups * inner]
    weight_ptr,  # [outputs, inner]
    weight_scale_ptr,  # [ceil(outputs / 128), ceil(inner / 128)]
    bias_ptr,  # [outputs], or anything where has_bias is 0
    parts_ptr,  # [splits, tiles, tokens, OUTPUTS] float32, or anything where SPLIT is false
    arrived_ptr,  # [tiles], zero, or anything where SPLIT is false
    out_ptr,  # [tokens, outputs], or with ACTIVATION [tokens, outputs / 2]
    tokens,
    outputs16,
    inner16,
    groups,
    splits,
    has_bias,
    limit,  # of the activation; infinite where there is none
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,  # divides 128, so that all rows of a tile share their scales, or those of gate and of up do
    WEIGHT_FIRST: tl.constexpr,
    SPLIT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    AHEAD: tl.constexpr,
):
    outputs, inner = outputs16 * 16, inner16 * 16
    tile = tl.program_id(0)
    token = tl.arange(0, TOKENS)
    GATED: tl.constexpr = ACTIVATION != ""
    WIDTH: tl.constexpr = OUTPUTS // 2 if GATED else OUTPUTS
    # What lies outside is computed from the last row again, and not written.
    if GATED:
        output, known = rows_in_turn(tile * WIDTH, outputs // 2, WIDTH)
    else:
        output = tile * WIDTH + tl.arange(0, WIDTH)
        output, known = tl.minimum(output, outputs - 1), output < outputs
    weight_row = weight_ptr + output.to(tl.int64)[:, None] * inner
    steps = tl.cdiv(tl.cdiv(inner, _GROUP), splits) * _GROUP
    start = tl.program_id(1) * steps
    end = tl.minimum(start + steps, inner)
    # A quarter of each row at most: more would keep the kernel before from what it reads.
    ahead = tl.minimum(start + tl.arange(0, AHEAD // 128) * 128, start + (end - start) // 4)
    prefetch_and_wait(weight_row + ahead[None, :])

    group = tile * OUTPUTS // (outputs // groups)
    x_row = x_ptr + token[:, None] * (groups * inner) + group * inner
    scale_row = weight_scale_ptr + tile * WIDTH // _GROUP * tl.cdiv(inner, _GROUP)
    total = tl.zeros([OUTPUTS, TOKENS] if WEIGHT_FIRST else [TOKENS, OUTPUTS], tl.float32)
    # Tokens that are not there are not read: 16 of them are half the bytes of the weights.
    is_token = (token < tokens)[:, None]
    last_group = (inner - 1) // _GROUP  # there are no scales behind it
    scale = tl.load(scale_row + start // _GROUP)
    if GATED:
        up_row = scale_row + outputs // (2 * _GROUP) * tl.cdiv(inner, _GROUP)
        up_scale = tl.load(up_row + start // _GROUP)
        is_up = tl.arange(0, OUTPUTS) // 8 % 2 == 1  # see `rows_in_turn`
    for step in range(start, end, _GROUP):
        column = step + tl.arange(0, _GROUP)[None, :]
        inside = column < inner
        # The next step's, whose latency this one's product hides.
        next_group = tl.minimum(step // _GROUP + 1, last_group)
        next_scale = tl.load(scale_row + next_group)
        x = tl.load(x_row + column, mask=is_token & inside, other=0.0)
        weight = tl.load(weight_row + column, mask=inside, other=0.0)
        # By float32: the instruction that makes bfloat16 of float16 directly has an eighth of the rate.
        weight = weight.to(tl.float16).to(tl.float32).to(x.dtype)
        part = tl.dot(weight, tl.trans(x)) if WEIGHT_FIRST else tl.dot(x, tl.trans(weight))
        if GATED:
            by_row = tl.where(is_up, up_scale, scale)
            total += part * (by_row[:, None] if WEIGHT_FIRST else by_row[None, :])
            up_scale = tl.load(up_row + next_group)
        else:
            total += part * scale
        scale = next_scale

    total = tl.trans(total) if WEIGHT_FIRST else total  # [TOKENS, OUTPUTS]
    added = tl.load(bias_ptr + output, mask=known & (has_bias != 0), other=0.0).to(tl.float32)[None, :]
    finish_tile(
        total, added, parts_ptr, arrived_ptr, out_ptr, tile, tokens, outputs, splits, limit,
        TOKENS, OUTPUTS, SPLIT, ACTIVATION,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "outputs16", "inner16", "groups", "splits", "has_bias"])
def fp8_linear_kernel(
    x_ptr,  # [tokens, groups * inner]
    x_scale_ptr,  # [ceil(groups * inner / 128), tokens] where MODE is "rounded", else anything
    weight_ptr,  # [outputs, inner]
    weight_scale_ptr,  # [ceil(outputs / 128), ceil(inner / 128)]
    bias_ptr,  # [outputs], or anything where has_bias is 0
    out_ptr,  # [tokens, outputs], or [splits, tokens, outputs] float32 where SPLIT
    tokens,
    outputs16,
    inner16,
    groups,  # of rows of the weight, each of which multiplies its own part of a token
    splits,
    has_bias,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    MODE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    wait_for_previous()
    outputs, inner = outputs16 * 16, inner16 * 16
    # Programs that run at the same time share weights first: all tokens by some outputs, then the next outputs.
    blocks_m = tl.cdiv(tokens, BLOCK_M)
    row = tl.program_id(0) % blocks_m * BLOCK_M + tl.arange(0, BLOCK_M)
    first = tl.program_id(0) // blocks_m * (2 * BLOCK_N)
    left = first + tl.arange(0, BLOCK_N)
    right = left + BLOCK_N
    steps = tl.cdiv(tl.cdiv(inner, _GROUP), splits) * _GROUP
    start = tl.program_id(1) * steps

    # What lies outside is computed from the last row again, and not written.
    token = tl.minimum(row, tokens - 1).to(tl.int64)
    scale_rows, scale_columns = tl.cdiv(outputs, _GROUP), tl.cdiv(inner, _GROUP)
    group = first // (outputs // groups)
    x_ptr += group * inner
    x_scale_ptr += (group * scale_columns).to(tl.int64) * tokens
    left_sum, right_sum = scaled_product(
        x_ptr + token[:, None] * (groups * inner),
        x_scale_ptr + token,
        tokens,
        weight_ptr,
        tl.minimum(left, outputs - 1).to(tl.int64)[:, None] * inner,
        tl.minimum(right, outputs - 1).to(tl.int64)[:, None] * inner,
        weight_scale_ptr + first // _GROUP * scale_columns,
        weight_scale_ptr + tl.minimum((first + BLOCK_N) // _GROUP, scale_rows - 1) * scale_columns,
        start, tl.minimum(start + steps, inner), inner, BLOCK_M, BLOCK_N, BLOCK_K, MODE,
    )  # fmt: skip

    out_row = out_ptr + (tl.program_id(1).to(tl.int64) * tokens + row)[:, None] * outputs
    for half in tl.static_range(2):
        total = left_sum if half == 0 else right_sum
        column = (left if half == 0 else right)[None, :]
        if not SPLIT:
            total += tl.load(bias_ptr + column, mask=(column < outputs) & (has_bias != 0), other=0.0).to(tl.float32)
        inside = (row < tokens)[:, None] & (column < outputs)
        tl.store(out_row + column, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens", "outputs16", "splits", "has_bias"])
def reduce_kernel(
    parts_ptr,  # [splits, tokens, outputs] float32
    bias_ptr,  # [outputs], or anything where has_bias is 0
    out_ptr,  # [tokens, outputs]
    tokens,
    outputs16,
    splits,
    has_bias,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    outputs = outputs16 * 16
    size = tokens * outputs.to(tl.int64)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    total = tl.load(bias_ptr + index % outputs, mask=inside & (has_bias != 0), other=0.0).to(tl.float32)
    for split in range(splits):
        total += tl.load(parts_ptr + split * size + index, mask=inside, other=0.0)
    tl.store(out_ptr + index, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def scaled_product(
    a_row,  # [BLOCK_M, 1] pointers to the first value of each row
    a_scale,  # [BLOCK_M] pointers to the first scale of each row, where MODE is "rounded"
    a_scale_stride,  # from one group's scales to the next one's
    b,  # pointer to weights
    left_row,  # [BLOCK_N, 1] where each row begins from there; 32 bits save registers where they are enough
    right_row,
    left_scale,  # pointer to the first of the scales that all rows on the left share
    right_scale,
    start,  # of the inner dimension, a multiple of 128
    end,
    inner,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # divides 128
    MODE: tl.constexpr,  # "exact", "rounding" or "rounded": see variants.activation_mode
):
    """The rows of a times two blocks of weights: two of [BLOCK_M, BLOCK_N] float32.

    Two halves, since each step's product is scaled before it is added: an accumulator and one product of the whole
    width would not fit into the registers.
    """
    left_sum = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    right_sum = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    last_group = (inner - 1) // _GROUP  # there are no scales behind it
    group = tl.minimum(start // _GROUP, last_group)
    by_left, by_right = tl.load(left_scale + group), tl.load(right_scale + group)
    if MODE == "rounded":
        scale = tl.load(a_scale + group.to(tl.int64) * a_scale_stride)
    for step in range(start, end, BLOCK_K):
        column = step + tl.arange(0, BLOCK_K)[None, :]
        inside = column < inner
        a = tl.load(a_row + column, mask=inside, other=0.0)
        left = tl.load(b + (left_row + column), mask=inside, other=0.0)
        right = tl.load(b + (right_row + column), mask=inside, other=0.0)
        # The next step's scales are loaded before this one's product, which hides their latency.
        group = tl.minimum((step + BLOCK_K) // _GROUP, last_group)
        next_left, next_right = tl.load(left_scale + group), tl.load(right_scale + group)
        if MODE == "exact":
            left_sum += tl.dot(a, tl.trans(decode_e4m3(left).to(a.dtype))) * by_left
            right_sum += tl.dot(a, tl.trans(decode_e4m3(right).to(a.dtype))) * by_right
        elif MODE == "rounding":
            rounded, row_scale = rounded_to_fp8(a)
            left_sum += tl.dot(rounded, tl.trans(left)) * (row_scale * by_left)[:, None]
            right_sum += tl.dot(rounded, tl.trans(right)) * (row_scale * by_right)[:, None]
        else:
            next_scale = tl.load(a_scale + group.to(tl.int64) * a_scale_stride)
            left_sum += tl.dot(a, tl.trans(left)) * (scale * by_left)[:, None]
            right_sum += tl.dot(a, tl.trans(right)) * (scale * by_right)[:, None]
            scale = next_scale
        by_left, by_right = next_left, next_right
    return left_sum, right_sum


@triton.jit
def rounded_to_fp8(x):
    """[rows, 128] -> the same in FP8, and a scale for each row: its largest becomes 448."""
    wide = x.to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(wide), axis=1), 1e-10) / _LARGEST
    return (wide / scale[:, None]).to(tl.float8e4nv), scale
