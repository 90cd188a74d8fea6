"""The kernels of attention over a window and compressed entries. `triton.py` launches them, and says how they share the
work.

Softmax is computed online (Milakov and Gimelshein, 2018; Dao et al., 2022), in powers of two. Of what a query sees the
first `WINDOW` places are the window, and the compressed entries are behind them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.dependent_launch import wait_for_previous
from kernels.packed_entries.triton import UNITS, load_entries, store_entries
from kernels.window_entries.triton import turned_last

_LOG2E = tl.constexpr(1.4426950408889634)


# Of a batch's sequences, some from the middle.
@triton.jit(
    do_not_specialize=[
        "first_seq", "first_token", "heads", "window_stride16", "places", "fresh_rows", "page_stride16", "page_shift",
        "table_width", "top_k", "ratio", "split", "scale",
    ],
    do_not_specialize_on_alignment=["rows_ptr", "table_ptr", "slots_ptr", "counts_ptr", "query_start_ptr",
                                    "seq_lens_ptr"],
)  # fmt: skip
def attend_kernel(
    query_ptr,  # [T, heads, DIM]
    out_ptr,  # as query
    partial_ptr,  # [sequences of this launch, heads, parts, DIM] float32, of DECODES
    weights_ptr,  # [sequences of this launch, heads, parts, 2] float32, of DECODES
    window_ptr,  # each sequence's last entries, at their positions modulo places: byte by byte,
    window_turned_ptr,  # as bfloat16,
    window_scales_ptr,  # and as the scales of an entry
    fresh_ptr,  # one page of the entries of all tokens from first_token on, unless DECODES; as window
    fresh_turned_ptr,
    fresh_scales_ptr,
    pages_ptr,  # compressed entries; as window
    pages_turned_ptr,
    pages_scales_ptr,
    rows_ptr,  # [S] int64, of window
    table_ptr,  # [S, table_width]
    slots_ptr,  # [T, top_k], where CHOSEN
    counts_ptr,  # [T], where CHOSEN
    sinks_ptr,  # [heads] float32
    cos_sin_ptr,  # [max_position, ROPE] float32
    query_start_ptr,  # [S + 1]
    seq_lens_ptr,  # [S]
    first_seq,
    first_token,
    heads,
    window_stride16,
    places,  # of a sequence's ring, at least WINDOW
    fresh_rows,
    page_stride16,
    page_shift,  # of two, entries of a page
    table_width,
    top_k,
    ratio,  # tokens of a compressed entry
    split,  # places of a part, of DECODES
    scale,
    DIM: tl.constexpr,
    ROPE: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DECODES: tl.constexpr,
    CHOSEN: tl.constexpr,
):
    wait_for_previous()
    seq = first_seq + tl.program_id(1)
    tiles = tl.cdiv(heads, ROWS)
    place = tl.program_id(0) // tiles  # of a part, or of a query in its sequence
    start = tl.load(query_start_ptr + seq)
    length = tl.load(seq_lens_ptr + seq)
    query_len = tl.load(query_start_ptr + seq + 1) - start
    first = length - query_len  # position of the first query
    if DECODES:
        position = first
        token = start.to(tl.int64)
    else:
        if place >= query_len:
            return
        position = first + place
        token = (start + place).to(tl.int64)
    far = tl.load(counts_ptr + token) if CHOSEN else (position + 1) // ratio
    begin = place * split if DECODES else 0
    end = WINDOW + far
    alone = True
    if DECODES:
        # The first part has the window, so that there always is one.
        if (begin >= end) & (place > 0):
            return
        alone = end <= split
        end = tl.minimum(end, begin + split)

    head = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    inside = head < heads
    content, rotary = tl.arange(0, DIM)[None, :], tl.arange(0, ROPE)[None, :] + (DIM - ROPE)
    row_of_head = (token * heads + head)[:, None] * DIM
    query = tl.load(query_ptr + row_of_head + content, mask=inside[:, None], other=0.0)  # meets zeros where it turns
    turned_query = tl.load(query_ptr + row_of_head + rotary, mask=inside[:, None], other=0.0)
    highest = tl.full((ROWS,), -1e30, tl.float32)  # of nothing seen so far: any number whose power of two is 0
    weight = tl.zeros((ROWS,), dtype=tl.float32)
    total = tl.zeros((ROWS, DIM), dtype=tl.float32)
    turned_total = tl.zeros((ROWS, ROPE), dtype=tl.float32)
    factor = scale * _LOG2E
    ring = tl.load(rows_ptr + seq)
    latest = position % places  # where it lies in the ring
    row_table_ptr = table_ptr + seq.to(tl.int64) * table_width
    own_slots_ptr = slots_ptr + token * top_k
    column = begin + tl.arange(0, COLUMNS)
    if CHOSEN:
        slot = tl.load(own_slots_ptr + (column - WINDOW), mask=(column >= WINDOW) & (column < end), other=0)
    else:
        slot = tl.load(
            row_table_ptr + ((column - WINDOW) >> page_shift), mask=(column >= WINDOW) & (column < end), other=0
        )
    for _ in range(begin, end, COLUMNS):
        near = column < WINDOW
        if CHOSEN:
            page = slot >> page_shift
            row = slot & ((1 << page_shift) - 1)
        else:
            page = slot
            row = (column - WINDOW) & ((1 << page_shift) - 1)
        at = page.to(tl.int64) * page_stride16 + row * UNITS
        at_scales = page.to(tl.int64) * (page_stride16 * 2) + ((UNITS * 2) << page_shift) + row
        seen = tl.where(near, column <= position, column < end)
        in_ring = latest - column  # the latest first
        in_ring += tl.where(in_ring < 0, places, 0)
        near_at = ring * window_stride16 + in_ring * UNITS
        near_scales = ring * (window_stride16 * 2) + places * (UNITS * 2) + in_ring
        codes = tl.where(near, window_ptr + near_at * 16, pages_ptr + at * 16)
        turned = tl.where(near, window_turned_ptr + near_at * 8, pages_turned_ptr + at * 8)
        scales = tl.where(near, window_scales_ptr + near_scales, pages_scales_ptr + at_scales)
        if not DECODES:
            recent = near & (column <= position - first)
            in_page = (token - first_token - column).to(tl.int64)
            fresh_at = in_page * UNITS
            codes = tl.where(recent, fresh_ptr + fresh_at * 16, codes)
            turned = tl.where(recent, fresh_turned_ptr + fresh_at * 8, turned)
            scales = tl.where(recent, fresh_scales_ptr + fresh_rows.to(tl.int64) * (UNITS * 2) + in_page, scales)
        # Where the next entries lie, so that nothing waits for it.
        column += COLUMNS
        behind = (column >= WINDOW) & (column < end)
        if CHOSEN:
            slot = tl.load(own_slots_ptr + (column - WINDOW), mask=behind, other=0)
        else:
            slot = tl.load(row_table_ptr + ((column - WINDOW) >> page_shift), mask=behind, other=0)
        entries, turned_entries = load_entries(codes, turned, scales, seen, query.dtype)
        scores = tl.dot(turned_query, tl.trans(turned_entries))
        scores = tl.dot(query, tl.trans(entries), scores)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1) * factor)
        weights = tl.exp2(scores * factor - higher[:, None])
        shrink = tl.exp2(highest - higher)
        weight = weight * shrink + tl.sum(weights, axis=1)
        weights = weights.to(query.dtype)
        total = tl.dot(weights, entries, total * shrink[:, None])
        turned_total = tl.dot(weights, turned_entries, turned_total * shrink[:, None])
        highest = higher

    if alone:
        angles = cos_sin_ptr + position.to(tl.int64) * ROPE
        sinks = tl.load(sinks_ptr + head, mask=inside, other=0.0)
        weight += tl.exp2(sinks * _LOG2E - highest)
        TYPE: tl.constexpr = out_ptr.dtype.element_ty
        plain = inside[:, None] & (content < DIM - ROPE)
        tl.store(out_ptr + row_of_head + content, (total / weight[:, None]).to(TYPE), mask=plain)
        turned_total = turned_last(turned_total / weight[:, None], angles, ROPE, BACK=True)
        tl.store(out_ptr + row_of_head + rotary, turned_total.to(TYPE), mask=inside[:, None])
    else:
        parts = tl.num_programs(0) // tiles
        part = (tl.program_id(1).to(tl.int64) * heads + head) * parts + place
        plain = inside[:, None] & (content < DIM - ROPE)
        tl.store(partial_ptr + part[:, None] * DIM + content, total, mask=plain)
        tl.store(partial_ptr + part[:, None] * DIM + rotary, turned_total, mask=inside[:, None])
        tl.store(weights_ptr + part * 2, highest, mask=inside)
        tl.store(weights_ptr + part * 2 + 1, weight, mask=inside)


@triton.jit(
    do_not_specialize=["first_seq", "heads", "parts", "split", "ratio", "has_counts", "joins_one"],
    do_not_specialize_on_alignment=["counts_ptr", "seq_lens_ptr"],
)
def merge_kernel(
    partial_ptr,  # [sequences of this launch, heads, parts, DIM] float32
    weights_ptr,  # [sequences of this launch, heads, parts, 2] float32
    out_ptr,  # [S, heads, DIM]
    counts_ptr,  # [S] compressed entries that were chosen for each, or anything where has_counts is 0
    sinks_ptr,  # [heads] float32
    cos_sin_ptr,  # [max_position, ROPE] float32
    seq_lens_ptr,  # [S]
    first_seq,  # of this launch
    heads,
    parts,
    split,
    ratio,
    has_counts,
    joins_one,  # 0 where a part that is alone is the result already
    DIM: tl.constexpr,
    ROPE: tl.constexpr,
    WINDOW: tl.constexpr,
    PARTS: tl.constexpr,  # taken at a time
):
    wait_for_previous()
    head = tl.program_id(0).to(tl.int64)
    seq = first_seq + tl.program_id(1)
    length = tl.load(seq_lens_ptr + seq)
    far = length // ratio
    if has_counts != 0:
        far = tl.load(counts_ptr + seq)
    end = tl.cdiv(WINDOW + far, split)
    if (end == 1) & (joins_one == 0):
        return
    content = tl.arange(0, DIM)
    highest = -1e30
    weight = 0.0
    total = tl.zeros((DIM,), dtype=tl.float32)
    base = (tl.program_id(1) * heads + head) * parts
    for start in range(0, end, PARTS):
        part = start + tl.arange(0, PARTS)
        inside = part < end
        highs = tl.load(weights_ptr + (base + part) * 2, mask=inside, other=-1e30)
        sums = tl.load(weights_ptr + (base + part) * 2 + 1, mask=inside, other=0.0)
        tile = tl.load(partial_ptr + (base + part)[:, None] * DIM + content[None, :], mask=inside[:, None], other=0.0)
        higher = tl.maximum(highest, tl.max(highs, axis=0))
        shares = tl.exp2(highs - higher)
        shrink = tl.exp2(highest - higher)
        weight = weight * shrink + tl.sum(sums * shares, axis=0)
        total = total * shrink + tl.sum(tile * shares[:, None], axis=0)
        highest = higher
    weight += tl.exp2(tl.load(sinks_ptr + head) * _LOG2E - highest)
    result = turned_last((total / weight)[None, :], cos_sin_ptr + (length - 1).to(tl.int64) * ROPE, ROPE, BACK=True)
    target = out_ptr + (seq * heads + head) * DIM + content[None, :]
    tl.store(target, result.to(out_ptr.dtype.element_ty))


@triton.jit(
    do_not_specialize=["first_seq", "first_token", "stride16", "page_rows"],
    do_not_specialize_on_alignment=["rows_ptr", "query_start_ptr", "seq_lens_ptr"],
)
def keep_kernel(
    entry_ptr,  # [T, DIM]
    codes_ptr,  # rings as `attend_kernel` has them; or one page of all tokens from first_token on
    turned_ptr,
    scales_ptr,
    rows_ptr,  # [S] int64, of the rings
    query_start_ptr,  # [S + 1]
    seq_lens_ptr,  # [S]
    first_seq,
    first_token,
    stride16,
    page_rows,
    DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
):
    wait_for_previous()
    seq = first_seq + tl.program_id(1)
    start = tl.load(query_start_ptr + seq)
    query_len = tl.load(query_start_ptr + seq + 1) - start
    place = query_len - 1 - tl.program_id(0)
    if place < 0:
        return
    token = (start + place).to(tl.int64)
    if RING:
        page = tl.load(rows_ptr + seq)
        row = (tl.load(seq_lens_ptr + seq) - query_len + place) % page_rows
    else:
        page = tl.full((), 0, tl.int64)
        row = token - first_token
    at = page * stride16 + row * UNITS + tl.zeros((1,), tl.int64)
    at_scales = page * (stride16 * 2) + page_rows.to(tl.int64) * (UNITS * 2) + row + tl.zeros((1,), tl.int64)
    x = tl.load(entry_ptr + token * DIM + tl.arange(0, DIM))[None, :].to(tl.float32)
    store_entries(
        x, codes_ptr + at * 16, turned_ptr + at * 8, scales_ptr + at_scales, tl.full((1,), 1, tl.int1)
    )  # fmt: skip
