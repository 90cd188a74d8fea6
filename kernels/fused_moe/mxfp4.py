"""The grouped product with weights in MXFP4, which are decoded to the model's dtype tile by tile. So every architecture
has it, and a decode reads little more than half a byte for each weight."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import triton
import triton.language as tl

from kernels.dependent_launch import wait_for_previous
from kernels.fused_moe.products import block_and_tile, rows_of
from kernels.gated_activation.triton import activated
from kernels.mxfp4 import halves


@triton.jit(do_not_specialize=["columns16", "inner32", "top_k", "limit"])
def mxfp4_product_kernel(
    a_ptr,  # as in `plain_product_kernel`
    b_ptr,  # [experts, 2 * columns, inner / 2], or without ACTIVATION [experts, columns, inner / 2], of bytes
    b_scale_ptr,  # the same with inner / 32
    order_ptr,
    blocks_ptr,  # as in `Sorted`
    weights_ptr,  # [pairs]
    out_ptr,  # [pairs, columns], in sorted order with ACTIVATION, else in the order of the tokens
    columns16,
    inner32,
    top_k,
    limit,  # of the activation; infinite where there is none
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    wait_for_previous()
    columns, inner = columns16 * 16, inner32 * 32
    GATED: tl.constexpr = ACTIVATION != ""
    WIDTH: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    tiles = tl.cdiv(columns, WIDTH)
    num_blocks = tl.load(blocks_ptr)
    if tl.program_id(0) >= num_blocks * tiles:
        return
    block, tile = block_and_tile(tl.program_id(0), num_blocks, tiles, GROUP)
    expert, place, inside, pair = rows_of(blocks_ptr, order_ptr, block, BLOCK_M)
    row = pair // top_k if GATED else place

    # Rows of gate and of up take turns, so that each thread ends up with both of an element.
    n = tl.arange(0, BLOCK_N)
    if GATED:
        b_row = n % 2 * columns + tl.minimum(tile * WIDTH + n // 2, columns - 1)
        b_rows = 2 * columns
    else:
        b_row = tl.minimum(tile * WIDTH + n, columns - 1)
        b_rows = columns
    k = tl.arange(0, BLOCK_K)[None, :]
    byte = tl.arange(0, BLOCK_K // 2)[None, :]
    group = tl.arange(0, BLOCK_K // 32)[None, :]
    a_start = a_ptr + row.to(tl.int64)[:, None] * inner + k
    rows_before = expert.to(tl.int64) * b_rows
    b_start = b_ptr + rows_before * (inner32 * 16)
    scale_start = b_scale_ptr + rows_before * inner32
    # 32 bits: pointers would take twice the registers.
    b_place = b_row[:, None] * (inner32 * 16) + byte
    scale_place = b_row[:, None] * inner32 + group
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, inner, BLOCK_K):
        left = inner - start
        a = tl.load(a_start + start, mask=k < left, other=0.0)
        codes = tl.load(b_start + (b_place + start // 2), mask=byte < left // 2, other=0)
        exponents = tl.load(scale_start + (scale_place + start // 32), mask=group < left // 32, other=0)
        total = tl.dot(a, tl.trans(_decoded(codes, exponents, BLOCK_N, BLOCK_K, a.dtype)), total)

    column = tile * WIDTH + tl.arange(0, WIDTH)
    if GATED:
        gate, up = tl.split(tl.reshape(total, [BLOCK_M, WIDTH, 2]))
        result, out_row = activated(gate, up, limit, ACTIVATION, LIMITED=True), place
    else:
        result, out_row = total * tl.load(weights_ptr + pair)[:, None], pair
    written = inside[:, None] & (column < columns)[None, :]
    out = out_ptr + out_row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out, result.to(out_ptr.dtype.element_ty), mask=written)


@triton.jit
def _decoded(codes, exponents, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TYPE: tl.constexpr):
    """[BLOCK_N, BLOCK_K / 2] bytes and [BLOCK_N, BLOCK_K / 32] exponents -> [BLOCK_N, BLOCK_K]."""
    first, second = halves(codes)
    value = tl.reshape(tl.join(first, second), [BLOCK_N, BLOCK_K // 32, 32])
    scale = (tl.minimum(exponents.to(tl.int32) + 14, 255) << 23).to(tl.float32, bitcast=True)
    return tl.reshape(value.to(tl.float32) * scale[:, :, None], [BLOCK_N, BLOCK_K]).to(TYPE)


@triton.jit(do_not_specialize=["columns16", "inner32", "top_k", "limit"])
def mxfp4_row_kernel(
    a_ptr,  # as in `mxfp4_product_kernel`, two numbers in 32 bits
    b_ptr,  # and eight numbers in 32 bits
    b_scale_ptr,
    ids_ptr,  # [pairs] the expert of each
    weights_ptr,
    out_ptr,
    columns16,
    inner32,
    top_k,
    limit,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """As `mxfp4_product_kernel` for a single row, without a matrix unit: decoding takes as long as reading then, and
    what brings weights to such a unit would come on top. Pairs need not be sorted."""
    wait_for_previous()
    columns = columns16 * 16
    GATED: tl.constexpr = ACTIVATION != ""
    WIDTH: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    TYPE: tl.constexpr = out_ptr.dtype.element_ty
    tiles = tl.cdiv(columns, WIDTH)
    tile, pair = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    expert = tl.load(ids_ptr + pair)
    row = (pair // top_k if GATED else pair).to(tl.int64)

    n = tl.arange(0, BLOCK_N)
    if GATED:
        b_row = n % 2 * columns + tl.minimum(tile * WIDTH + n // 2, columns - 1)
        b_rows = 2 * columns
    else:
        b_row = tl.minimum(tile * WIDTH + n, columns - 1)
        b_rows = columns
    GROUPS: tl.constexpr = BLOCK_K // 32
    group = tl.arange(0, GROUPS)
    word = tl.arange(0, 4)[None, None, :]
    rows_before = expert.to(tl.int64) * b_rows
    a_start = a_ptr + row * (inner32 * 16)
    b_start = b_ptr + rows_before * (inner32 * 4)
    scale_start = b_scale_ptr + rows_before * inner32
    total = tl.zeros([BLOCK_N, GROUPS, 4], tl.float32)
    for start in range(0, inner32, GROUPS):
        inside = start + group < inner32
        place_of = (start + group)[None, :, None] * 4 + word  # [1, GROUPS, 4]
        words = tl.load(
            b_start + (b_row[:, None, None] * (inner32 * 4) + place_of), mask=inside[None, :, None], other=0
        )
        exponents = tl.load(
            scale_start + (b_row[:, None] * inner32 + (start + group)[None, :]), mask=inside[None, :], other=0
        )
        # With a factor of 2^30, which what is missing of 2^126 leaves: see `_numbers` and `_pair`.
        scale = (tl.minimum(exponents.to(tl.int32) + 30, 255) << 23).to(tl.float32, bitcast=True)
        part = tl.zeros([BLOCK_N, GROUPS, 4], tl.float32)
        for half in tl.static_range(2):
            # Columns 4 and 5, and 0 and 1, of a word; then 6 and 7, and 2 and 3.
            early, late = _pair(a_start, place_of, half, inside, TYPE), _pair(a_start, place_of, 2 + half, inside, TYPE)
            for odd in tl.static_range(2):
                first, second = _numbers(words << (4 * (3 - 2 * half - odd)))
                part += first * early[odd]
                part += second * late[odd]
        total += part * scale[:, :, None]

    sums = tl.sum(tl.reshape(total, [BLOCK_N, GROUPS * 4]), axis=1)
    column = tile * WIDTH + tl.arange(0, WIDTH)
    if GATED:
        gate, up = tl.split(tl.reshape(sums, [WIDTH, 2]))
        result = activated(gate, up, limit, ACTIVATION, LIMITED=True)
    else:
        result = sums * tl.load(weights_ptr + pair)
    tl.store(out_ptr + pair.to(tl.int64) * columns + column, result.to(TYPE), mask=column < columns)


@triton.jit
def _numbers(words):
    """Of words of eight codes the two that are at the top of their halves, the lower first, times 2^-126, in float32:
    their bits are moved to where the last two of its exponent and the first of its mantissa are."""
    both = (words & -2147450880) | ((words & 0x70007000) >> 6)
    return (both << 16).to(tl.float32, bitcast=True), (both & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _pair(a_start, words, pair: tl.constexpr, inside, TYPE: tl.constexpr):
    """Two neighbouring numbers of what eight numbers each of `words` multiply, times 2^96, in float32."""
    both = tl.load(a_start + (words * 4 + pair), mask=inside[None, :, None], other=0)
    if tl.bfloat16 == TYPE:  # the upper half of a float32
        even, odd = (both << 16).to(tl.float32, bitcast=True), (both & -65536).to(tl.float32, bitcast=True)
    else:
        even = (both & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        odd = ((both >> 16) & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    return even * 7.9228162514264338e28, odd * 7.9228162514264338e28
