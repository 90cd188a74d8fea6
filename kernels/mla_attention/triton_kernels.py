"""The kernels of latent attention. `triton.py` launches them, and says how they share the work.

Softmax is computed online (Milakov and Gimelshein, 2018; Dao et al., 2022), in powers of two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.dependent_launch import wait_for_previous

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_query(
    query_ptr, absorbed_ptr, token, num_tokens, head, heads, token_stride8, nope8,
    RANK: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """A token's query for a tile of heads: absorbed, [ROWS, RANK], and its rotary part, [ROWS, ROPE]."""
    inside = (head < heads)[:, None]
    place = (head.to(tl.int64) * num_tokens + token)[:, None] * RANK + tl.arange(0, RANK)[None, :]
    query = tl.load(absorbed_ptr + place, mask=inside, other=0.0)
    start = token * (token_stride8 * 8) + head * (nope8 * 8 + ROPE) + nope8 * 8
    turned = tl.load(query_ptr + start[:, None] + tl.arange(0, ROPE)[None, :], mask=inside, other=0.0)
    return query, turned


@triton.jit
def attend_latents(
    total,  # [ROWS, RANK] float32, the sum of latents so far, weighted relative to `highest`
    highest,  # [ROWS] the largest score so far, times log2(e)
    weight,  # [ROWS] the sum of weights so far
    query,
    turned,
    entry,  # [COLUMNS] where the entries begin
    seen,  # [COLUMNS] other entries may hold anything, and 0 * NaN is NaN
    factor,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
):
    # Keys and values both.
    latent = tl.load(entry[:, None] + tl.arange(0, RANK)[None, :], mask=seen[:, None], other=0.0)
    key = tl.load(entry[:, None] + RANK + tl.arange(0, ROPE)[None, :], mask=seen[:, None], other=0.0)
    scores = tl.dot(turned, tl.trans(key))
    scores = tl.dot(query, tl.trans(latent), scores)  # [ROWS, COLUMNS]
    scores = tl.where(seen[None, :], scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, axis=1) * factor)
    weights = tl.exp2(scores * factor - higher[:, None])
    shrink = tl.exp2(highest - higher)
    weight = weight * shrink + tl.sum(weights, axis=1)
    total = tl.dot(weights.to(latent.dtype), latent, total * shrink[:, None])
    return total, higher, weight


@triton.jit
def store_part(
    total, highest, weight, out_ptr, partial_ptr, weights_ptr, token, num_tokens, head, heads, part, alone,
    RANK: tl.constexpr,
):  # fmt: skip
    """What this part of a token's entries comes to: the result where it is `alone`, else for `merge_kernel`."""
    inside = (head < heads)[:, None]
    content = tl.arange(0, RANK)[None, :]
    if alone:
        place = (head.to(tl.int64) * num_tokens + token)[:, None] * RANK + content
        tl.store(out_ptr + place, (total / weight[:, None]).to(out_ptr.dtype.element_ty), mask=inside)
    else:
        row = (tl.program_id(2).to(tl.int64) * heads + head) * tl.num_programs(1) + part
        tl.store(partial_ptr + row[:, None] * RANK + content, total, mask=inside)
        tl.store(weights_ptr + row * 2, highest, mask=head < heads)
        tl.store(weights_ptr + row * 2 + 1, weight, mask=head < heads)


@triton.jit(
    do_not_specialize=[
        "first_seq", "num_seqs", "heads", "token_stride8", "nope8", "table_width", "page_shift", "split", "scale",
    ]
)  # fmt: skip
def decode_kernel(
    query_ptr,  # [S, heads, nope + ROPE], tokens strided: one token a sequence
    absorbed_ptr,  # [heads, S, RANK]
    cache_ptr,  # [blocks, block_size, RANK + ROPE]
    out_ptr,  # [heads, S, RANK]
    partial_ptr,  # [sequences of this launch, heads, parts, RANK] float32
    weights_ptr,  # [sequences of this launch, heads, parts, 2] float32
    seq_lens_ptr,  # [S]
    table_ptr,  # [S, table_width]
    first_seq,  # of this launch
    num_seqs,  # S
    heads,
    token_stride8,
    nope8,
    table_width,
    page_shift,
    split,  # tokens of a part
    scale,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    wait_for_previous()
    part = tl.program_id(1)
    seq = (first_seq + tl.program_id(2)).to(tl.int64)
    length = tl.load(seq_lens_ptr + seq)
    begin = part * split
    if begin >= length:
        return
    head = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    query, turned = load_query(
        query_ptr, absorbed_ptr, seq, num_seqs, head, heads, token_stride8, nope8, RANK, ROPE
    )  # fmt: skip
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), dtype=tl.float32)
    total = tl.zeros((ROWS, RANK), dtype=tl.float32)
    factor = scale * _LOG2E
    row_table_ptr = table_ptr + seq * table_width
    end = tl.minimum(begin + split, length)
    token = begin + tl.arange(0, COLUMNS)
    page = tl.load(row_table_ptr + (token >> page_shift), mask=token < end, other=0)
    for _ in range(begin, end, COLUMNS):
        seen = token < end
        slot = (page << page_shift) + (token & ((1 << page_shift) - 1))
        entry = cache_ptr + slot.to(tl.int64) * (RANK + ROPE)
        # Where the next latents lie, so that nothing waits for it.
        token += COLUMNS
        page = tl.load(row_table_ptr + (token >> page_shift), mask=token < end, other=0)
        total, highest, weight = attend_latents(
            total, highest, weight, query, turned, entry, seen, factor, RANK, ROPE
        )  # fmt: skip

    store_part(
        total, highest, weight, out_ptr, partial_ptr, weights_ptr, seq, num_seqs, head, heads, part,
        length <= split, RANK,
    )  # fmt: skip


@triton.jit(do_not_specialize=["first_seq", "num_seqs", "heads", "parts", "split"])
def merge_kernel(
    partial_ptr,  # [sequences of this launch, heads, parts, RANK] float32
    weights_ptr,  # [sequences of this launch, heads, parts, 2] float32
    out_ptr,  # [heads, S, RANK]
    seq_lens_ptr,  # [S]
    first_seq,  # of this launch
    num_seqs,  # S
    heads,
    parts,
    split,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,  # taken at a time
):
    wait_for_previous()
    head = tl.program_id(0).to(tl.int64)
    seq = first_seq + tl.program_id(1)
    end = tl.cdiv(tl.load(seq_lens_ptr + seq), split)
    if end == 1:  # the decode kernel wrote the result itself
        return
    content = tl.arange(0, RANK)
    highest = float("-inf")
    weight = 0.0
    total = tl.zeros((RANK,), dtype=tl.float32)
    base = (tl.program_id(1) * heads + head) * parts
    # One after the other, as `hopper_kernels` joins them where one program has all parts: the sums are the same.
    for start in range(0, end, PARTS):
        for part in tl.static_range(PARTS):
            row = base + start + part
            inside = start + part < end
            high = tl.load(weights_ptr + row * 2, mask=inside, other=float("-inf"))
            other = tl.load(weights_ptr + row * 2 + 1, mask=inside, other=0.0)
            tile = tl.load(partial_ptr + row * RANK + content, mask=inside, other=0.0)
            higher = tl.maximum(highest, high)
            share = tl.exp2(high - higher)
            shrink = tl.exp2(highest - higher)
            weight = tl.fma(weight, shrink, other * share)
            total = tl.fma(total, shrink, tile * share)
            highest = higher
    tl.store(out_ptr + (head * num_seqs + seq) * RANK + content, (total / weight).to(out_ptr.dtype.element_ty))


# Of a batch's sequences, some from the middle.
@triton.jit(
    do_not_specialize=["table_width", "page_shift"], do_not_specialize_on_alignment=["seq_lens_ptr", "table_ptr"]
)
def gather_kernel(
    cache_ptr,  # [blocks, block_size, RANK + ROPE]
    entries_ptr,  # [sum of contexts, RANK + ROPE]
    seq_lens_ptr,  # [S]
    ends_ptr,  # [S] int64, the contexts' sums
    table_ptr,  # [S, table_width]
    table_width,
    page_shift,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    wait_for_previous()
    seq = tl.program_id(1)
    length = tl.load(seq_lens_ptr + seq)
    if tl.program_id(0) * TOKENS >= length:
        return
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    inside = token < length
    page = tl.load(table_ptr + seq.to(tl.int64) * table_width + (token >> page_shift), mask=inside, other=0)
    slot = (page.to(tl.int64) << page_shift) + (token & ((1 << page_shift) - 1))
    source = cache_ptr + slot[:, None] * (RANK + ROPE)
    target = entries_ptr + (tl.load(ends_ptr + seq) - length + token)[:, None] * (RANK + ROPE)
    _copy(source, target, inside, RANK)
    _copy(source + RANK, target + RANK, inside, ROPE)


@triton.jit
def _copy(source, target, inside, WIDTH: tl.constexpr):
    column = tl.arange(0, WIDTH)[None, :]
    tl.store(target + column, tl.load(source + column, mask=inside[:, None], other=0.0), mask=inside[:, None])


@triton.jit
def _attend(
    total,  # [ROWS, BLOCK_VALUE] float32, the sum of values so far, weighted relative to `highest`
    highest,  # [ROWS] the largest score so far, times log2(e)
    weight,  # [ROWS] the sum of weights so far
    content,  # [ROWS, BLOCK_NOPE] of the query
    turned,  # [ROWS, ROPE] of the query
    keys,  # descriptors of this sequence's own
    rotary_keys,
    values,
    position,  # [ROWS] of each row's token
    begin,
    end,
    column,  # where this head's keys begin
    factor,
    RANK: tl.constexpr,
    NOPE: tl.constexpr,
    COLUMNS: tl.constexpr,
    MASKED: tl.constexpr,  # false where every row sees all of these tokens
):
    for first in range(begin, end, COLUMNS):
        # Zeros behind the end of the sequence.
        scores = tl.dot(content, tl.trans(keys.load([first, column])))
        scores = tl.dot(turned, tl.trans(rotary_keys.load([first, RANK])), scores)  # [ROWS, COLUMNS]
        if MASKED:
            token = first + tl.arange(0, COLUMNS)
            scores = tl.where(token[None, :] <= position[:, None], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1) * factor)
        weights = tl.exp2(scores * factor - higher[:, None])
        shrink = tl.exp2(highest - higher)
        weight = weight * shrink + tl.sum(weights, axis=1)
        total = tl.dot(weights.to(content.dtype), values.load([first, column + NOPE]), total * shrink[:, None])
        highest = higher
    return total, highest, weight


@triton.jit(
    do_not_specialize=["first_head", "heads", "group", "token_stride8", "scale"],
    do_not_specialize_on_alignment=["query_start_ptr", "seq_lens_ptr"],
)
def prefill_kernel(
    query_ptr,  # [T, heads, NOPE + ROPE], tokens strided
    expanded_ptr,  # [sum of contexts, group, NOPE + VALUE]
    entries_ptr,  # [sum of contexts, RANK + ROPE]
    out_ptr,  # [T, heads, VALUE]
    query_start_ptr,  # [S + 1]
    seq_lens_ptr,  # [S]
    ends_ptr,  # [S] int64, the contexts' sums
    first_head,  # of the group
    heads,
    group,
    token_stride8,
    scale,
    RANK: tl.constexpr,
    NOPE: tl.constexpr,
    ROPE: tl.constexpr,
    VALUE: tl.constexpr,
    BLOCK_NOPE: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    wait_for_previous()
    seq = tl.program_id(2)
    start = tl.load(query_start_ptr + seq)
    query_len = tl.load(query_start_ptr + seq + 1) - start
    # Late tiles see more context, so they go first: the last to run is then a short one.
    tile = tl.cdiv(query_len, ROWS) - 1 - tl.program_id(0)
    if tile < 0:
        return
    row = tile * ROWS + tl.arange(0, ROWS)
    inside = (row < query_len)[:, None]
    token = (start + row).to(tl.int64)
    head = first_head + tl.program_id(1)
    dim = tl.arange(0, BLOCK_NOPE)[None, :]
    rotary = tl.arange(0, ROPE)[None, :]
    query = query_ptr + token[:, None] * (token_stride8 * 8) + head * (NOPE + ROPE)
    content = tl.load(query + dim, mask=inside & (dim < NOPE), other=0.0)
    turned = tl.load(query + NOPE + rotary, mask=inside, other=0.0)

    length = tl.load(seq_lens_ptr + seq)
    first_entry = tl.load(ends_ptr + seq) - length
    width = group * (NOPE + VALUE)
    own = expanded_ptr + first_entry * width
    # Where BLOCK_NOPE exceeds NOPE the rest of a key's tile holds values, which meet zeros of the query.
    keys = tl.make_tensor_descriptor(own, [length, width], [width, 1], [COLUMNS, BLOCK_NOPE])
    values = tl.make_tensor_descriptor(own, [length, width], [width, 1], [COLUMNS, BLOCK_VALUE])
    rotary_keys = tl.make_tensor_descriptor(
        entries_ptr + first_entry * (RANK + ROPE), [length, RANK + ROPE], [RANK + ROPE, 1], [COLUMNS, ROPE]
    )
    before = length - query_len
    position = before + row
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), dtype=tl.float32)
    total = tl.zeros((ROWS, BLOCK_VALUE), dtype=tl.float32)
    # Tokens before `whole_end` are seen by every row; only what lies behind them needs a mask.
    whole_end = (before + tile * ROWS + 1) // COLUMNS * COLUMNS
    end = tl.minimum(before + (tile + 1) * ROWS, length)
    column = tl.program_id(1) * (NOPE + VALUE)
    factor = scale * _LOG2E
    total, highest, weight = _attend(
        total, highest, weight, content, turned, keys, rotary_keys, values, position, 0, whole_end, column, factor,
        RANK, NOPE, COLUMNS, False,
    )  # fmt: skip
    total, highest, weight = _attend(
        total, highest, weight, content, turned, keys, rotary_keys, values, position, whole_end, end, column, factor,
        RANK, NOPE, COLUMNS, True,
    )  # fmt: skip
    value = tl.arange(0, BLOCK_VALUE)[None, :]
    target = out_ptr + (token[:, None] * heads + head) * VALUE + value
    tl.store(target, (total / weight[:, None]).to(out_ptr.dtype.element_ty), mask=inside & (value < VALUE))
