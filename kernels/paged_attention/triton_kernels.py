"""The kernels of paged attention. `triton.py` launches them, and says how they share the work.

Softmax is computed online (Milakov and Gimelshein, 2018; Dao et al., 2022), in powers of two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.dependent_launch import laid_out, let_next_start, prefetch, wait_for_previous
from kernels.float8 import decode_e4m3

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _tile(cache_ptr, slot, inside, head, kv_heads, like, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """Rows of one head at `slot` [COLUMNS]: [COLUMNS, BLOCK_DIM] in the dtype of `like`; zeros where not `inside`."""
    dim = tl.arange(0, BLOCK_DIM)
    pointers = cache_ptr + (slot * kv_heads + head)[:, None] * HEAD_DIM + dim[None, :]
    if HEAD_DIM == BLOCK_DIM:
        tile = tl.load(pointers, mask=inside[:, None], other=0.0)
    else:
        tile = tl.load(pointers, mask=inside[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)
    if cache_ptr.dtype.element_ty == tl.uint8:
        tile = decode_e4m3(tile)
    return tile.to(like.dtype)


@triton.jit
def _attend(
    total,  # [ROWS, BLOCK_DIM] float32, the sum of values so far, weighted relative to `highest`
    highest,  # [ROWS] the largest score so far, times log2(e)
    weight,  # [ROWS] the sum of weights so far
    query,  # [ROWS, BLOCK_DIM]
    key,  # the cache where PAGED, else a descriptor of this sequence's own keys
    value,
    table_ptr,  # this sequence's row of the block table
    position,  # [ROWS] of each row's token
    begin,  # of the context's tokens, a multiple of COLUMNS
    end,
    length,
    head,
    kv_heads,
    page_shift,
    window,
    scale,
    cap,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PAGED: tl.constexpr,
    MASKED: tl.constexpr,  # false where every row sees all of these tokens
):
    for first in range(begin, end, COLUMNS):
        token = first + tl.arange(0, COLUMNS)
        if PAGED:
            if MASKED:  # slots no row sees may hold anything, and 0 * NaN is NaN
                inside = (token < length) & (token > tl.min(position, axis=0) - window)
                page = tl.load(table_ptr + (token >> page_shift), mask=inside, other=0).to(tl.int64)
            else:
                inside = tl.full((COLUMNS,), True, tl.int1)
                page = tl.load(table_ptr + (token >> page_shift)).to(tl.int64)
            slot = (page << page_shift) + (token & ((1 << page_shift) - 1))
            key_tile = _tile(key, slot, inside, head, kv_heads, query, HEAD_DIM, BLOCK_DIM)
        else:
            key_tile = key.load([first, head * HEAD_DIM])  # zeros behind the end of the sequence
        scores = tl.dot(query, tl.trans(key_tile))  # [ROWS, COLUMNS]
        if SOFT_CAP:
            scores = scores * scale / cap
            scores = cap * (2 * tl.sigmoid(2 * scores) - 1)  # tanh
            factor = _LOG2E
        else:
            factor = scale * _LOG2E
        if MASKED:
            visible = (token[None, :] <= position[:, None]) & (token[None, :] > position[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1) * factor)
        # A row that has seen nothing yet stays at -inf; its weights are taken relative to 0, and are 0.
        base = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
        weights = tl.exp2(scores * factor - base[:, None])
        shrink = tl.exp2(highest - base)
        weight = weight * shrink + tl.sum(weights, axis=1)
        if PAGED:
            value_tile = _tile(value, slot, inside, head, kv_heads, query, HEAD_DIM, BLOCK_DIM)
        else:
            value_tile = value.load([first, head * HEAD_DIM])
        total = tl.dot(weights.to(query.dtype), value_tile, total * shrink[:, None])
        highest = higher
    return total, highest, weight


@triton.jit
def _sink(sink_ptr, query_head, mask, has_sinks):
    """A head's score that belongs to no token, as powers of two; -inf where there are no sinks."""
    return tl.load(sink_ptr + query_head, mask=mask & (has_sinks != 0), other=float("-inf")) * _LOG2E


@triton.jit(
    do_not_specialize=[
        "first_seq", "num_seqs", "token_stride16", "kv_heads", "group", "table_width", "page_shift", "window",
        "has_sinks", "num_tiles",
    ]
)  # fmt: skip
def prefill_kernel(
    query_ptr,  # [T, heads, HEAD_DIM], tokens strided
    key_ptr,  # [blocks, block_size, kv_heads, HEAD_DIM]
    value_ptr,
    out_ptr,  # [T, heads, HEAD_DIM]
    sink_ptr,  # [heads] float32
    query_start_ptr,  # [S + 1]
    seq_lens_ptr,  # [S]
    table_ptr,  # [S, table_width]
    first_seq,  # sequences from here on
    num_seqs,
    token_stride16,
    kv_heads,
    group,
    table_width,
    page_shift,
    window,
    has_sinks,
    num_tiles,
    scale,
    cap,
    value_scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PAGED: tl.constexpr,  # else keys and values are [sum of contexts, kv_heads, HEAD_DIM]
    MAX_SEQS: tl.constexpr,  # sequences at most where they are not paged
):
    wait_for_previous()
    # Late tiles see more context, so they go first: the last to run is then a short one.
    tile = num_tiles - 1 - tl.program_id(0)
    head = tl.program_id(1)
    # Sequence i's tiles begin at (rows before it) // ROWS + i, which leaves room for a last tile that is not full.
    base = tl.load(query_start_ptr + first_seq)
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        rows_before = (tl.load(query_start_ptr + first_seq + middle) - base) * group
        if rows_before // ROWS + middle <= tile:
            low = middle
        else:
            high = middle
    seq = first_seq + low
    start = tl.load(query_start_ptr + seq)
    query_len = tl.load(query_start_ptr + seq + 1) - start
    first_row = (tile - ((start - base) * group // ROWS + low)) * ROWS
    if first_row >= query_len * group:
        return

    row = first_row + tl.arange(0, ROWS)
    own = row // group  # the row's token, counted from the sequence's first query
    query_head = head * group + row % group
    dim = tl.arange(0, BLOCK_DIM)
    inside = (own < query_len)[:, None] & (dim < HEAD_DIM)[None, :]
    token = (start + own).to(tl.int64)
    query = tl.load(
        query_ptr + token[:, None] * (token_stride16 * 16) + query_head[:, None] * HEAD_DIM + dim[None, :],
        mask=inside, other=0.0,
    )  # fmt: skip
    if key_ptr.dtype.element_ty.primitive_bitwidth == 8:
        query = query.to(tl.float16)  # FP8 widens to float16 in one instruction
    length = tl.load(seq_lens_ptr + seq)
    before = length - query_len
    position = before + own

    highest = _sink(sink_ptr, query_head, own < query_len, has_sinks)
    weight = tl.where(highest > float("-inf"), 1.0, 0.0)
    total = tl.zeros((ROWS, BLOCK_DIM), dtype=tl.float32)

    first_position = before + first_row // group
    last_position = tl.minimum(before + (first_row + ROWS - 1) // group, length - 1)
    # Tokens from `whole_begin` to `whole_end` are seen by every row; only what lies around them needs a mask.
    begin = tl.maximum(first_position - window + 1, 0) // COLUMNS * COLUMNS
    lowest_common = tl.maximum(last_position - window + 1, 0)
    whole_begin = (lowest_common + COLUMNS - 1) // COLUMNS * COLUMNS
    whole_end = tl.maximum((first_position + 1) // COLUMNS * COLUMNS, whole_begin)
    whole_begin = tl.minimum(whole_begin, last_position + 1)
    whole_end = tl.minimum(whole_end, last_position + 1)
    row_table_ptr = table_ptr + seq.to(tl.int64) * table_width
    if PAGED:
        key = key_ptr
        value = value_ptr
    else:
        earlier = tl.arange(0, MAX_SEQS)
        lens = tl.load(seq_lens_ptr + first_seq + earlier, mask=earlier < low, other=0)
        width = kv_heads * HEAD_DIM
        offset = tl.sum(lens, axis=0).to(tl.int64) * width
        key = tl.make_tensor_descriptor(key_ptr + offset, [length, width], [width, 1], [COLUMNS, BLOCK_DIM])
        value = tl.make_tensor_descriptor(value_ptr + offset, [length, width], [width, 1], [COLUMNS, BLOCK_DIM])
    total, highest, weight = _attend(
        total, highest, weight, query, key, value, row_table_ptr, position, begin, whole_begin, length,
        head, kv_heads, page_shift, window, scale, cap, HEAD_DIM, BLOCK_DIM, COLUMNS, SOFT_CAP, PAGED, True,
    )  # fmt: skip
    total, highest, weight = _attend(
        total, highest, weight, query, key, value, row_table_ptr, position, whole_begin, whole_end, length,
        head, kv_heads, page_shift, window, scale, cap, HEAD_DIM, BLOCK_DIM, COLUMNS, SOFT_CAP, PAGED, False,
    )  # fmt: skip
    total, highest, weight = _attend(
        total, highest, weight, query, key, value, row_table_ptr, position, whole_end, last_position + 1, length,
        head, kv_heads, page_shift, window, scale, cap, HEAD_DIM, BLOCK_DIM, COLUMNS, SOFT_CAP, PAGED, True,
    )  # fmt: skip
    result = total * (value_scale / weight)[:, None]
    heads = kv_heads * group
    tl.store(
        out_ptr + (token[:, None] * heads + query_head[:, None]) * HEAD_DIM + dim[None, :],
        result.to(out_ptr.dtype.element_ty), mask=inside,
    )  # fmt: skip


@triton.jit
def _parts(length, window, SPLIT: tl.constexpr):
    """The parts of a context that its last token sees, as the first and one behind the last."""
    return tl.maximum(length - window, 0) // SPLIT, (length + SPLIT - 1) // SPLIT


@triton.jit
def _prefetch_part(
    key_ptr,
    value_ptr,
    seq_len_ptr,
    row_table_ptr,
    first,  # token of the part
    head,
    kv_heads,
    page_shift,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Have a part's keys and values brought into the L2 cache. Only those of its last token may be written meanwhile,
    and that is where they go."""
    LINE: tl.constexpr = 1024 // key_ptr.dtype.element_ty.primitive_bitwidth
    LINES: tl.constexpr = (BLOCK_DIM + LINE - 1) // LINE
    length = laid_out(seq_len_ptr)
    if first < length:
        token = tl.minimum(first + tl.arange(0, SPLIT), length - 1)
        page = laid_out(row_table_ptr + (token >> page_shift)).to(tl.int64)
        slot = (page << page_shift) + (token & ((1 << page_shift) - 1))
        place = ((slot * kv_heads + head) * HEAD_DIM)[:, None] + (tl.arange(0, LINES) * LINE)[None, :]
        prefetch(key_ptr + place)
        prefetch(value_ptr + place)


@triton.jit(
    do_not_specialize=[
        "first_seq", "token_stride16", "kv_heads", "group", "table_width", "page_shift", "window", "has_sinks",
    ]
)  # fmt: skip
def decode_kernel(
    query_ptr,  # [S, heads, HEAD_DIM], tokens strided: one token a sequence
    key_ptr,  # [blocks, block_size, kv_heads, HEAD_DIM]
    value_ptr,
    out_ptr,  # [S, heads, HEAD_DIM]
    partial_ptr,  # [sequences of this launch, heads, parts, HEAD_DIM] float32
    weights_ptr,  # [sequences of this launch, heads, parts, 2] float32
    sink_ptr,  # [heads] float32
    seq_lens_ptr,  # [S]
    table_ptr,  # [S, table_width]
    first_seq,  # of this launch
    token_stride16,
    kv_heads,
    group,
    table_width,
    page_shift,
    window,
    has_sinks,
    scale,
    cap,
    value_scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SPLIT: tl.constexpr,
    PREFETCHES: tl.constexpr,  # keys and values, while the kernel before still runs
):
    row_tiles = (group + ROWS - 1) // ROWS
    head = tl.program_id(0) // row_tiles
    part = tl.program_id(1)
    seq = (first_seq + tl.program_id(2)).to(tl.int64)
    if PREFETCHES:
        let_next_start()
        _prefetch_part(
            key_ptr, value_ptr, seq_lens_ptr + seq, table_ptr + seq * table_width, part * SPLIT, head, kv_heads,
            page_shift, HEAD_DIM, BLOCK_DIM, SPLIT,
        )  # fmt: skip
    wait_for_previous()
    length = tl.load(seq_lens_ptr + seq)
    first_part, end_part = _parts(length, window, SPLIT)
    if (part < first_part) | (part >= end_part):
        return
    row = tl.program_id(0) % row_tiles * ROWS + tl.arange(0, ROWS)
    query_head = head * group + row
    dim = tl.arange(0, BLOCK_DIM)
    inside = (row < group)[:, None] & (dim < HEAD_DIM)[None, :]
    query = tl.load(
        query_ptr + seq * (token_stride16 * 16) + query_head[:, None] * HEAD_DIM + dim[None, :], mask=inside, other=0.0
    )
    if key_ptr.dtype.element_ty.primitive_bitwidth == 8:
        query = query.to(tl.float16)  # as in prefill_kernel
    position = tl.full((ROWS,), 0, tl.int32) + (length - 1)
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), dtype=tl.float32)
    total = tl.zeros((ROWS, BLOCK_DIM), dtype=tl.float32)
    begin = tl.maximum(part * SPLIT, tl.maximum(length - window, 0) // COLUMNS * COLUMNS)
    total, highest, weight = _attend(
        total, highest, weight, query, key_ptr, value_ptr, table_ptr + seq * table_width, position,
        begin, tl.minimum((part + 1) * SPLIT, length), length,
        head, kv_heads, page_shift, window, scale, cap, HEAD_DIM, BLOCK_DIM, COLUMNS, SOFT_CAP, True, True,
    )  # fmt: skip
    heads = kv_heads * group
    if end_part - first_part == 1:
        sink = _sink(sink_ptr, query_head, row < group, has_sinks)
        higher = tl.maximum(highest, sink)
        shrink = tl.exp2(highest - higher)
        weight = weight * shrink + tl.exp2(sink - higher)
        result = total * (shrink * value_scale / weight)[:, None]
        tl.store(
            out_ptr + (seq * heads + query_head[:, None]) * HEAD_DIM + dim[None, :],
            result.to(out_ptr.dtype.element_ty), mask=inside,
        )  # fmt: skip
    else:
        place = (tl.program_id(2).to(tl.int64) * heads + query_head) * tl.num_programs(1) + part
        tl.store(partial_ptr + place[:, None] * HEAD_DIM + dim[None, :], total * value_scale, mask=inside)
        tl.store(weights_ptr + place * 2, highest, mask=row < group)
        tl.store(weights_ptr + place * 2 + 1, weight, mask=row < group)


@triton.jit(do_not_specialize=["first_seq", "width16", "table_width", "page_shift", "window"])
def gather_kernel(
    key_ptr,  # [blocks, block_size, width]
    value_ptr,
    keys_ptr,  # [sum of contexts, width]
    values_ptr,
    query_start_ptr,  # [S + 1]
    seq_lens_ptr,  # [S]
    table_ptr,  # [S, table_width]
    first_seq,  # sequences from here on are copied, one behind the other
    width16,  # kv_heads * head_dim
    table_width,
    page_shift,
    window,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    MAX_SEQS: tl.constexpr,
):
    wait_for_previous()
    seq = tl.program_id(1)
    length = tl.load(seq_lens_ptr + first_seq + seq)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    if tl.program_id(0) * TOKENS >= length:
        return
    earlier = tl.arange(0, MAX_SEQS)
    start = tl.sum(tl.load(seq_lens_ptr + first_seq + earlier, mask=earlier < seq, other=0), axis=0).to(tl.int64)
    width = width16 * 16
    # Zeros for slots no query sees: they may hold anything, and 0 * NaN is NaN.
    query_ptr = query_start_ptr + first_seq + seq
    seen = token > length - (tl.load(query_ptr + 1) - tl.load(query_ptr)) - window
    page = tl.load(
        table_ptr + (first_seq + seq).to(tl.int64) * table_width + (token >> page_shift), mask=token < length, other=0
    ).to(tl.int64)
    slot = (page << page_shift) + (token & ((1 << page_shift) - 1))
    for column in range(0, width, BLOCK):
        place = column + tl.arange(0, BLOCK)
        inside = (token < length)[:, None] & (place < width)[None, :]
        source = slot[:, None] * width + place[None, :]
        target = (start + token)[:, None] * width + place[None, :]
        _copy(key_ptr + source, keys_ptr + target, inside, seen[:, None])
        _copy(value_ptr + source, values_ptr + target, inside, seen[:, None])


@triton.jit
def _copy(source, target, inside, seen):
    tile = tl.load(source, mask=inside & seen, other=0.0)
    if tile.dtype == tl.uint8:
        tile = decode_e4m3(tile)
    tl.store(target, tile.to(target.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["first_seq", "heads", "parts", "window", "has_sinks"])
def merge_kernel(
    partial_ptr,  # [sequences of this launch, heads, parts, HEAD_DIM] float32
    weights_ptr,  # [sequences of this launch, heads, parts, 2] float32
    sink_ptr,  # [heads] float32
    out_ptr,  # [S, heads, HEAD_DIM]
    seq_lens_ptr,  # [S]
    first_seq,  # of this launch
    heads,
    parts,
    window,
    has_sinks,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    PARTS: tl.constexpr,  # taken at a time
):
    wait_for_previous()
    head = tl.program_id(0)
    seq = (first_seq + tl.program_id(1)).to(tl.int64)
    length = tl.load(seq_lens_ptr + seq)
    first, end = _parts(length, window, SPLIT)
    if end - first == 1:  # the decode kernel wrote the result itself
        return
    dim = tl.arange(0, BLOCK_DIM)
    highest = _sink(sink_ptr, head, True, has_sinks)
    weight = tl.where(highest > float("-inf"), 1.0, 0.0)
    total = tl.zeros((BLOCK_DIM,), dtype=tl.float32)
    base = (tl.program_id(1).to(tl.int64) * heads + head) * parts
    for start in range(first, end, PARTS):
        part = start + tl.arange(0, PARTS)
        inside = part < end
        highs = tl.load(weights_ptr + (base + part) * 2, mask=inside, other=float("-inf"))
        sums = tl.load(weights_ptr + (base + part) * 2 + 1, mask=inside, other=0.0)
        tile = tl.load(
            partial_ptr + (base + part)[:, None] * HEAD_DIM + dim[None, :],
            mask=inside[:, None] & (dim < HEAD_DIM)[None, :], other=0.0,
        )  # fmt: skip
        higher = tl.maximum(highest, tl.max(highs, axis=0))
        shares = tl.exp2(highs - higher)
        shrink = tl.exp2(highest - higher)
        weight = weight * shrink + tl.sum(sums * shares, axis=0)
        total = total * shrink + tl.sum(tile * shares[:, None], axis=0)
        highest = higher
    tl.store(
        out_ptr + (seq * heads + head) * HEAD_DIM + dim, (total / weight).to(out_ptr.dtype.element_ty),
        mask=dim < HEAD_DIM,
    )  # fmt: skip
