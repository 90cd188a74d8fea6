"""The grouped products' kernels: each block of sorted tokens by a tile of its expert's weights."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import triton
import triton.language as tl

from kernels.dependent_launch import wait_for_previous
from kernels.fp8_linear import GROUP
from kernels.fp8_linear.triton import rounded_to_fp8, scaled_product
from kernels.gated_activation.triton import activated, gate_and_up, rows_in_turn

_GROUP = tl.constexpr(GROUP)


@triton.jit(do_not_specialize=["columns16", "inner16", "top_k", "limit"])
def plain_product_kernel(
    a_ptr,  # [tokens, inner], or without ACTIVATION [pairs, inner] in sorted order
    b_ptr,  # [experts, 2 * columns, inner], or without ACTIVATION [experts, columns, inner]
    order_ptr,
    blocks_ptr,  # as in `Sorted`
    weights_ptr,  # [pairs]
    out_ptr,  # [pairs, columns], in sorted order with ACTIVATION, else in the order of the tokens
    columns16,
    inner16,
    top_k,
    limit,  # of the activation; infinite where there is none
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    wait_for_previous()
    columns, inner = columns16 * 16, inner16 * 16
    GATED: tl.constexpr = ACTIVATION != ""
    WIDTH: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    tiles = tl.cdiv(columns, WIDTH)
    num_blocks = tl.load(blocks_ptr)
    if tl.program_id(0) >= num_blocks * tiles:
        return
    block, tile = block_and_tile(tl.program_id(0), num_blocks, tiles, GROUP)
    expert, place, inside, pair = rows_of(blocks_ptr, order_ptr, block, BLOCK_M)
    row = pair // top_k if GATED else place

    if GATED:
        b_row, _ = rows_in_turn(tile * WIDTH, columns, WIDTH)
        b_rows = 2 * columns
    else:
        b_row = tl.minimum(tile * WIDTH + tl.arange(0, WIDTH), columns - 1)
        b_rows = columns
    k = tl.arange(0, BLOCK_K)
    a_start = a_ptr + row.to(tl.int64)[:, None] * inner + k[None, :]
    b_start = b_ptr + expert.to(tl.int64) * b_rows * inner
    b_place = b_row[:, None] * inner + k[None, :]  # 32 bits: pointers would take twice the registers
    total = tl.zeros([BLOCK_N, BLOCK_M] if WEIGHT_FIRST else [BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, inner, BLOCK_K):
        left = inner - start
        a = tl.load(a_start + start, mask=k[None, :] < left, other=0.0)
        b = tl.load(b_start + (b_place + start), mask=k[None, :] < left, other=0.0)
        total = tl.dot(b, tl.trans(a), total) if WEIGHT_FIRST else tl.dot(a, tl.trans(b), total)

    total = tl.trans(total) if WEIGHT_FIRST else total  # [BLOCK_M, BLOCK_N]
    column = tile * WIDTH + tl.arange(0, WIDTH)
    if GATED:
        gate, up = gate_and_up(total, BLOCK_M, WIDTH)
        result, out_row = activated(gate, up, limit, ACTIVATION, LIMITED=True), place
    else:
        result, out_row = total * tl.load(weights_ptr + pair)[:, None], pair
    written = inside[:, None] & (column < columns)[None, :]
    out = out_ptr + out_row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out, result.to(out_ptr.dtype.element_ty), mask=written)


@triton.jit(do_not_specialize=["columns16", "inner16", "top_k", "a_rows", "pairs", "limit"])
def fp8_product_kernel(
    a_ptr,  # as in plain_product_kernel; in FP8 where MODE is "rounded"
    a_scale_ptr,  # [ceil(inner / 128), a_rows] where MODE is "rounded", else anything
    b_ptr,
    b_scale_ptr,  # [experts, ceil(rows of b / 128), ceil(inner / 128)]
    order_ptr,
    blocks_ptr,
    weights_ptr,
    out_ptr,  # as in plain_product_kernel; in FP8 where MODE is "rounded" and there is an ACTIVATION
    out_scale_ptr,  # [columns / 128, pairs] where out is in FP8, else anything
    columns16,
    inner16,
    top_k,
    a_rows,
    pairs,
    limit,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    MODE: tl.constexpr,
    ROUND_TO: tl.constexpr,
):
    wait_for_previous()
    columns, inner = columns16 * 16, inner16 * 16
    GATED: tl.constexpr = ACTIVATION != ""
    WIDTH: tl.constexpr = BLOCK_N if GATED else 2 * BLOCK_N
    WIDE: tl.constexpr = tl.bfloat16 if ROUND_TO == "bf16" else tl.float16
    tiles = tl.cdiv(columns, WIDTH)
    num_blocks = tl.load(blocks_ptr)
    if tl.program_id(0) >= num_blocks * tiles:
        return
    block, tile = block_and_tile(tl.program_id(0), num_blocks, tiles, GROUP)
    expert, place, inside, pair = rows_of(blocks_ptr, order_ptr, block, BLOCK_M)
    row = (pair // top_k if GATED else place).to(tl.int64)

    # The two halves are gate and up of the same columns, or neighbouring columns.
    left = tile * WIDTH
    right = left + (columns if GATED else BLOCK_N)
    b_rows = 2 * columns if GATED else columns
    n = tl.arange(0, BLOCK_N)
    scale_rows, scale_columns = tl.cdiv(b_rows, _GROUP), tl.cdiv(inner, _GROUP)
    scale_start = b_scale_ptr + expert.to(tl.int64) * scale_rows * scale_columns
    left_sum, right_sum = scaled_product(
        a_ptr + row[:, None] * inner,
        a_scale_ptr + row,
        a_rows,
        b_ptr + expert.to(tl.int64) * b_rows * inner,
        tl.minimum(left + n, b_rows - 1)[:, None] * inner,
        tl.minimum(right + n, b_rows - 1)[:, None] * inner,
        scale_start + left // _GROUP * scale_columns,
        scale_start + tl.minimum(right // _GROUP, scale_rows - 1) * scale_columns,
        0, inner, inner, BLOCK_M, BLOCK_N, BLOCK_K, MODE,
    )  # fmt: skip

    column = left + n
    if GATED:
        result = activated(left_sum, right_sum, limit, ACTIVATION, LIMITED=True).to(WIDE)
        out = out_ptr + place.to(tl.int64)[:, None] * columns + column[None, :]
        written = inside[:, None] & (column < columns)[None, :]
        if MODE == "rounded":  # BLOCK_N is 128: each row of the tile is a group
            rounded, scale = rounded_to_fp8(result)
            tl.store(out, rounded, mask=written)
            tl.store(out_scale_ptr + tile.to(tl.int64) * pairs + place, scale, mask=inside)
        else:
            tl.store(out, result, mask=written)
    else:
        weight = tl.load(weights_ptr + pair)[:, None]
        out = out_ptr + pair.to(tl.int64)[:, None] * columns + column[None, :]
        for half in tl.static_range(2):
            result = (left_sum if half == 0 else right_sum) * weight
            written = inside[:, None] & (column + half * BLOCK_N < columns)[None, :]
            tl.store(out + half * BLOCK_N, result.to(out_ptr.dtype.element_ty), mask=written)


@triton.jit
def block_and_tile(program, num_blocks, tiles, GROUP: tl.constexpr):
    """The block of tokens and the tile of weights of a program: all tiles for GROUP blocks, then the next blocks."""
    group = program // (GROUP * tiles)
    first = group * GROUP
    blocks = tl.minimum(num_blocks - first, GROUP)
    place = program - first * tiles
    return first + place % blocks, place // blocks


@triton.jit
def rows_of(blocks_ptr, order_ptr, block, BLOCK_M: tl.constexpr):
    """A block's expert, and for each of its rows its place, whether there is one, and its pair. What lies outside is
    computed from the last row again, and not written."""
    entry = blocks_ptr + 4 * (1 + block)
    expert, first, end = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    row = first + tl.arange(0, BLOCK_M)
    place = tl.minimum(row, end - 1)
    return expert, place, row < end, tl.load(order_ptr + place)
