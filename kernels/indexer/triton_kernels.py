"""The kernels of an indexer: `score_kernel` scores the keys of a context for some queries, `select_kernel` finds the
largest of each query. `triton.py` launches them."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.dependent_launch import wait_for_previous
from kernels.float8 import decode_e4m3
from kernels.mxfp4 import decoded_halves

_LEAST = tl.constexpr(-(1 << 31))


# Of a batch's sequences, some from the middle.
@triton.jit(
    do_not_specialize=[
        "first_seq", "first_row", "end_row", "width", "table_width", "page_shift", "page_bytes16", "top_k", "ratio",
    ],
    do_not_specialize_on_alignment=["query_start_ptr", "seq_lens_ptr", "table_ptr"],
)  # fmt: skip
def score_kernel(
    query_ptr,  # [T, HEADS, DIM] codes, or with MXFP4 of each token those of all heads and then their exponents
    weights_ptr,  # [T, HEADS] float32
    keys_ptr,  # the cache, byte by byte
    scales_ptr,  # the cache in float32
    scores_ptr,  # [rows of this launch, width] float32
    query_start_ptr,  # [S + 1]
    seq_lens_ptr,  # [S]
    table_ptr,  # [S, table_width]
    first_seq,  # the sequence of the rows, or of the first where each has its own
    first_row,  # of this launch, among the T
    end_row,
    width,
    table_width,
    page_shift,
    page_bytes16,
    top_k,
    ratio,  # tokens of a key
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    KEYS: tl.constexpr,
    QUERIES: tl.constexpr,  # 1: of decodes, a sequence each
    CODED: tl.constexpr,  # codes in 8 bits are to be decoded
    MXFP4: tl.constexpr,
):
    wait_for_previous()
    GROUPS: tl.constexpr = DIM // 32
    seq = (first_seq + (tl.program_id(1) if QUERIES == 1 else 0)).to(tl.int64)
    row = first_row + tl.program_id(1) * QUERIES
    last = tl.minimum(row + QUERIES, end_row) - 1
    # Of the tokens before a row's, itself included, those of the last one.
    before = tl.load(seq_lens_ptr + seq) - tl.load(query_start_ptr + seq + 1) + 1
    begin = tl.program_id(0) * KEYS
    visible = (before + last) // ratio
    if (begin >= visible) | (visible <= top_k):  # it sees none of these, or all that there is
        return
    token = begin + tl.arange(0, KEYS)
    seen = token < visible
    page = tl.load(table_ptr + seq * table_width + (token >> page_shift), mask=seen, other=0).to(tl.int64)
    offset = token & ((1 << page_shift) - 1)
    # Scales lie behind all keys of a page.
    if MXFP4:
        place = page * (page_bytes16 * 16)
        even, odd = _halves(
            keys_ptr + (place + offset * (DIM // 2)), keys_ptr + (place + ((DIM // 2) << page_shift) + offset * GROUPS),
            seen, KEYS, DIM,
        )  # fmt: skip
    else:
        dim = tl.arange(0, DIM)[None, :]
        place = page * (page_bytes16 * 16) + offset * DIM
        keys = tl.load(keys_ptr + place[:, None] + dim, mask=seen[:, None], other=0.0)  # [KEYS, DIM]
        place = page * (page_bytes16 * 4) + ((DIM // 4) << page_shift) + offset
        scale = tl.load(scales_ptr + place, mask=seen, other=0.0)
        if CODED:
            keys = decode_e4m3(keys).to(tl.float16)
    head = tl.arange(0, HEADS)
    while row <= last:
        of_row = row.to(tl.int64) * HEADS + head
        # Heads side by side: a thread sums most of them by itself.
        if MXFP4:
            of_token = query_ptr + row.to(tl.int64) * (HEADS * (DIM // 2 + GROUPS))
            even_query, odd_query = _halves(
                of_token + head * (DIM // 2), of_token + HEADS * (DIM // 2) + head * GROUPS,
                head < HEADS, HEADS, DIM,
            )  # fmt: skip
            products = tl.dot(even, tl.trans(even_query))  # [KEYS, HEADS]
            products = tl.dot(odd, tl.trans(odd_query), products)
        else:
            query = tl.load(query_ptr + of_row[:, None] * DIM + dim)  # [HEADS, DIM]
            if CODED:
                query = decode_e4m3(query).to(tl.float16)
            products = tl.dot(keys, tl.trans(query))
        weights = tl.load(weights_ptr + of_row)
        products = tl.where(products < 0, 0.0, products)  # NaN stays
        scores = tl.sum(products * weights[None, :], axis=1)
        if not MXFP4:
            scores *= scale
        target = scores_ptr + (row - first_row).to(tl.int64) * width + token
        tl.store(target, scores, mask=token < (before + row) // ratio)
        row += 1


@triton.jit
def _halves(codes, exponents, given, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Even and odd columns of rows in MXFP4 in bfloat16, by pointers [ROWS] to both parts; zeros where not `given`."""
    group, byte = tl.arange(0, DIM // 32), tl.arange(0, 16)
    places = codes[:, None, None] + (group[None, :, None] * 16 + byte[None, None, :])
    bits = tl.load(places, mask=given[:, None, None], other=0)
    scales = tl.load(exponents[:, None] + group[None, :], mask=given[:, None], other=0)
    return decoded_halves(bits, scales, ROWS, DIM, tl.bfloat16)


@triton.jit(
    do_not_specialize=["first_seq", "first_row", "width", "table_width", "page_shift", "top_k", "ratio"],
    do_not_specialize_on_alignment=["query_start_ptr", "seq_lens_ptr", "table_ptr"],
)
def select_kernel(
    scores_ptr,  # [rows of this launch, width] float32
    slots_ptr,  # [T, top_k]
    counts_ptr,  # [T]
    query_start_ptr,  # [S + 1]
    seq_lens_ptr,  # [S]
    table_ptr,  # [S, table_width]
    first_seq,  # as of `score_kernel`
    first_row,
    width,
    table_width,
    page_shift,
    top_k,
    ratio,
    FEW: tl.constexpr,
    BLOCK: tl.constexpr,
    DECODES: tl.constexpr,
):
    wait_for_previous()
    seq = (first_seq + (tl.program_id(0) if DECODES else 0)).to(tl.int64)
    row = first_row + tl.program_id(0)
    visible = (tl.load(seq_lens_ptr + seq) - tl.load(query_start_ptr + seq + 1) + row + 1) // ratio
    tl.store(counts_ptr + row, tl.minimum(visible, top_k))
    target = slots_ptr + row.to(tl.int64) * top_k
    table_ptr += seq * table_width
    if visible <= top_k:
        for begin in range(0, top_k, BLOCK):
            token = begin + tl.arange(0, BLOCK)
            tl.store(target + token, _slots(token, token < visible, table_ptr, page_shift), mask=token < top_k)
        return
    scores_ptr += tl.program_id(0).to(tl.int64) * width
    if visible <= FEW:
        _choose(scores_ptr, target, table_ptr, visible, top_k, page_shift, FEW, ONCE=True)
    elif visible <= BLOCK:
        _choose(scores_ptr, target, table_ptr, visible, top_k, page_shift, BLOCK, ONCE=True)
    else:
        _choose(scores_ptr, target, table_ptr, visible, top_k, page_shift, BLOCK, ONCE=False)


@triton.jit
def _choose(scores_ptr, target, table_ptr, visible, top_k, page_shift, BLOCK: tl.constexpr, ONCE: tl.constexpr):
    """The slots of the `top_k` largest, in their order, to `target`. With ONCE there are no more than BLOCK, which stay
    in registers."""
    kept = _ordered(scores_ptr, tl.arange(0, BLOCK), visible)
    # Two bits at a time: 2^31 more than the largest number that at least k scores reach. Where k do, that is enough.
    found = tl.full((), 0, tl.int64)
    step = tl.full((), 1 << 30, tl.int64)
    reach = visible
    while (step > 0) & (reach > top_k):
        base = found + _LEAST
        first, second, third = (
            (base + step).to(tl.int32),
            (base + 2 * step).to(tl.int32),
            (base + 3 * step).to(tl.int32),
        )
        reached = _reached(kept, first, second, third)  # how often each of the three was
        if not ONCE:
            for begin in range(BLOCK, visible, BLOCK):
                score = _ordered(scores_ptr, begin + tl.arange(0, BLOCK), visible)
                reached += _reached(score, first, second, third)
        # All three by one sum over the threads.
        sums = tl.sum(reached)
        for bits in tl.static_range(0, 63, 21):
            count = ((sums >> bits) & 0x1FFFFF).to(tl.int32)
            found += step * (count >= top_k).to(tl.int64)
            reach = tl.where(count >= top_k, count, reach)
        step = step >> 2
    # Where more than k reach it, it is the k-th itself, and of those equal to it the first are missing.
    exact = reach == top_k
    least = (found + _LEAST - exact.to(tl.int64)).to(tl.int32)
    missing = tl.full((), 0, tl.int32)
    if not exact:
        larger = tl.sum((kept > least).to(tl.int32))
        if not ONCE:
            for begin in range(BLOCK, visible, BLOCK):
                larger += tl.sum((_ordered(scores_ptr, begin + tl.arange(0, BLOCK), visible) > least).to(tl.int32))
        missing = top_k - larger
    larger, equal = _write(
        kept, 0, tl.full((), 0, tl.int32), tl.full((), 0, tl.int32), least, missing, target, table_ptr, visible,
        page_shift,
    )  # fmt: skip
    if not ONCE:
        for begin in range(BLOCK, visible, BLOCK):
            score = _ordered(scores_ptr, begin + tl.arange(0, BLOCK), visible)
            larger, equal = _write(
                score, begin, larger, equal, least, missing, target, table_ptr, visible, page_shift
            )  # fmt: skip


@triton.jit
def _reached(score, first, second, third):
    """Which of three numbers each score reaches: in 21 bits for each."""
    low = (score >= first).to(tl.int32) + ((score >= second).to(tl.int32) << 21)
    return low.to(tl.int64) + ((score >= third).to(tl.int64) << 42)


@triton.jit
def _write(score, begin, larger, equal, least, missing, target, table_ptr, visible, page_shift):
    """Of a block of scores those that are chosen, behind the `larger` and `equal` ones before it, which are returned
    with its own."""
    token = begin + tl.arange(0, score.shape[0])
    is_larger, is_equal = (score > least).to(tl.int32), ((score == least) & (token < visible)).to(tl.int32)
    both = is_larger + (is_equal << 16)
    before = tl.cumsum(both) - both
    equals = equal + (before >> 16)
    place = larger + (before & 0xFFFF) + tl.minimum(equals, missing)
    taken = (is_larger == 1) | ((is_equal == 1) & (equals < missing))
    tl.store(target + place, _slots(token, taken, table_ptr, page_shift), mask=taken)
    return larger + tl.sum(is_larger), equal + tl.sum(is_equal)


@triton.jit
def _ordered(scores_ptr, token, visible):
    """Scores as whole numbers of the same order: NaN as infinity, both zeros as one, the least for what is not seen."""
    score = tl.load(scores_ptr + token, mask=token < visible, other=float("-inf"))
    score = tl.where(score != score, float("inf"), tl.where(score == 0, 0.0, score))
    bits = score.to(tl.int32, bitcast=True)
    return tl.where(token < visible, bits ^ ((bits >> 31) & 0x7FFFFFFF), _LEAST)


@triton.jit
def _slots(token, taken, table_ptr, page_shift):
    """Where tokens lie in the cache; -1 for those not taken."""
    page = tl.load(table_ptr + (token >> page_shift), mask=taken, other=0)
    return tl.where(taken, (page << page_shift) + (token & ((1 << page_shift) - 1)), -1)
