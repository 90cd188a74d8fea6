"""Latent attention's decode for many heads on sm_90, in Gluon, which says what Triton decides itself: which warps do
what, where tiles lie, and who waits for whom.

The sums of 64 heads against 512 values fill the registers of two warp groups, and two tiles of 64 tokens fill what the
queries leave of shared memory: one is in use while the other is on its way. The first group computes the scores of a
tile and its weights, which take the place of the tile's rotary keys; then each group sums half of the values, and the
matrix units go on with the scores of the next tile behind that. One more warp brings the tiles.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.dependent_launch import wait_for_previous

_LOG2E = gl.constexpr(1.4426950408889634)
_ROWS = gl.constexpr(64)  # heads of a program, tokens of a tile
_HALF = gl.constexpr(256)  # of the values
_ROPE = gl.constexpr(64)
_PIECE = gl.constexpr(16)  # tokens brought by one copy: they lie in one block of the cache
_COLUMNS = gl.constexpr(64)  # and so many of their columns, 128 bytes
_FOR_COPIES = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
_SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
_TOTAL = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
_STORED = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit(
    do_not_specialize=[
        "first_seq", "num_seqs", "heads", "token_stride8", "nope8", "table_width", "page_shift", "split", "together",
        "scale",
    ]
)  # fmt: skip
def hopper_decode_kernel(
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
    split,  # tokens of a part, two whole tiles or more
    together,  # parts of a program: one, or all that a sequence has
    scale,
):
    wait_for_previous()
    seq = (first_seq + gl.program_id(2)).to(gl.int64)
    length = gl.load(seq_lens_ptr + seq)
    begin = gl.program_id(1) * together * split
    if begin < length:
        end = gl.minimum(begin + together * split, length)
        first_head = gl.program_id(0) * _ROWS
        dtype: gl.constexpr = cache_ptr.dtype.element_ty
        query = gl.allocate_shared_memory(dtype, [2, _ROWS, _HALF], _FOR_COPIES)
        turned = gl.allocate_shared_memory(dtype, [_ROWS, _ROPE], _FOR_COPIES)
        latents = gl.allocate_shared_memory(dtype, [4, _ROWS, _HALF], _FOR_COPIES)  # both halves of two tiles
        keys = gl.allocate_shared_memory(dtype, [2, _ROWS, _ROPE], _FOR_COPIES)  # rotary, then a tile's weights
        shrinks = gl.allocate_shared_memory(gl.float32, [2, _ROWS], _STORED)
        # The highest scores and the sums of weights of a part and of the next one.
        results = gl.allocate_shared_memory(gl.float32, [4, _ROWS], _STORED)
        # Of both tiles: brought (by halves), used up, how much sums shrink, weights. Of both parts: results.
        brought = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
        used = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        shrunk = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        weighed = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        summed = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        for tile in gl.static_range(2):
            mbarrier.init(brought.index(2 * tile), count=1)
            mbarrier.init(brought.index(2 * tile + 1), count=1)
            mbarrier.init(used.index(tile), count=2)
            mbarrier.init(shrunk.index(tile), count=1)
            mbarrier.init(weighed.index(tile), count=1)
            mbarrier.init(summed.index(tile), count=1)
        _load_query(query_ptr, absorbed_ptr, query, turned, seq, num_seqs, first_head, heads, token_stride8, nope8)
        fence_async_shared()
        entries = tma.make_tensor_descriptor(
            cache_ptr, [0x7FFFFFFF, 2 * _HALF + _ROPE], [2 * _HALF + _ROPE, 1], [_PIECE, _COLUMNS], _FOR_COPIES
        )
        row_table_ptr = table_ptr + seq * table_width
        tiles = (latents, keys, shrinks, results, brought, used, shrunk, weighed, summed)
        span = (begin, end, split)
        place = (out_ptr, partial_ptr, weights_ptr, seq, num_seqs, first_head, heads, length, together)
        gl.warp_specialize(
            [
                (_weigh, (query, turned, tiles, place, span, scale * _LOG2E)),
                (_sum, (tiles, place, span)),
                (_bring, (entries, row_table_ptr, tiles, span, page_shift)),
            ],
            [4, 1],
            [216, 40],
        )


@gluon.jit
def _load_query(
    query_ptr, absorbed_ptr, query, turned, seq, num_seqs, first_head, heads, token_stride8, nope8
):  # fmt: skip
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    head = first_head + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, _COLUMNS, layout=gl.SliceLayout(0, layout))
    inside = (head < heads)[:, None]
    place = (head.to(gl.int64) * num_seqs + seq)[:, None] * (2 * _HALF) + column[None, :]
    for half in gl.static_range(2):
        for first in gl.static_range(0, _HALF, _COLUMNS):
            piece = gl.load(absorbed_ptr + place + (half * _HALF + first), mask=inside, other=0.0)
            query.index(half).slice(first, _COLUMNS, dim=1).store(piece)
    start = seq * (token_stride8 * 8) + head * (nope8 * 8 + _ROPE) + nope8 * 8
    turned.store(gl.load(query_ptr + start[:, None] + column[None, :], mask=inside, other=0.0))


@gluon.jit
def _bring(entries, row_table_ptr, tiles, span, page_shift):
    """All tiles, by halves, the rotary keys with the second. What would lie behind the end is that of the last block
    again."""
    latents, keys, _, _, brought, used, _, _, _ = tiles
    begin, end, split = span
    last = (end - 1) // _PIECE * _PIECE
    pieces: gl.constexpr = _ROWS // _PIECE
    tile = 0
    for part in range(begin, end, split):
        count = gl.cdiv(gl.minimum(part + split, end) - part, _ROWS)
        for step in range(count):
            here = tile & 1
            first = part + (count - 1 - step) * _ROWS
            # Looked up before there is room for them.
            slots = _slots(row_table_ptr, first, last, page_shift)
            mbarrier.wait(used.index(here), (tile >> 1 & 1) ^ 1)
            for half in gl.static_range(2):
                barrier = brought.index(2 * here + half)
                mbarrier.expect(barrier, _ROWS * (_HALF + half * _ROPE) * 2)
                # Columns of 128 bytes lie one below the other in shared memory.
                places = latents.index(2 * here + half)._reinterpret(
                    latents.dtype, [_HALF // _COLUMNS * pieces, _PIECE, _COLUMNS], _FOR_COPIES
                )  # fmt: skip
                for block in gl.static_range(_HALF // _COLUMNS):
                    for piece in gl.static_range(pieces):
                        place = places.index(block * pieces + piece)
                        column = half * _HALF + block * _COLUMNS
                        tma.async_copy_global_to_shared(entries, [slots[piece], column], barrier, place)
            rotary = keys.index(here)._reinterpret(keys.dtype, [pieces, _PIECE, _ROPE], _FOR_COPIES)
            for piece in gl.static_range(pieces):
                barrier = brought.index(2 * here + 1)
                tma.async_copy_global_to_shared(entries, [slots[piece], 2 * _HALF], barrier, rotary.index(piece))
            tile += 1


@gluon.jit
def _slots(row_table_ptr, first, last, page_shift):
    """Where the four pieces of a tile lie in the cache."""
    return (
        _slot(row_table_ptr, gl.minimum(first, last), page_shift),
        _slot(row_table_ptr, gl.minimum(first + _PIECE, last), page_shift),
        _slot(row_table_ptr, gl.minimum(first + 2 * _PIECE, last), page_shift),
        _slot(row_table_ptr, gl.minimum(first + 3 * _PIECE, last), page_shift),
    )


@gluon.jit
def _slot(row_table_ptr, token, page_shift):
    page = gl.load(row_table_ptr + (token >> page_shift))
    return (page << page_shift) + (token & ((1 << page_shift) - 1))


@gluon.jit
def _weigh(query, turned, tiles, place, span, factor):
    """Scores and weights, and the first half of the sums. A part's last tile comes first: no other one has entries
    behind the end."""
    latents, keys, shrinks, results, brought, used, shrunk, weighed, summed = tiles
    begin, end, split = span
    rows: gl.constexpr = gl.SliceLayout(1, _SCORES)
    sums: gl.constexpr = gl.SliceLayout(1, _TOTAL)
    column = gl.arange(0, _ROWS, layout=gl.SliceLayout(0, _SCORES))
    joined_highest = gl.full([_ROWS], float("-inf"), gl.float32, sums)
    joined_weight = gl.zeros([_ROWS], gl.float32, sums)
    tile = 0
    for part in range(begin, end, split):
        size = gl.minimum(part + split, end) - part
        count = gl.cdiv(size, _ROWS)
        highest = gl.full([_ROWS], float("-inf"), gl.float32, rows)
        weight = gl.zeros([_ROWS], gl.float32, rows)
        total = gl.zeros([_ROWS, _HALF], gl.float32, _TOTAL)
        scores = _scores(query, turned, latents, keys, brought, tile & 1, tile >> 1 & 1)
        scores = warpgroup_mma_wait(0, deps=[scores])
        inside = size - (count - 1) * _ROWS
        if inside < _ROWS:
            scores = gl.where((column < inside)[None, :], scores, float("-inf"))
            _clear(latents.index(2 * (tile & 1)), inside)
            _clear(latents.index(2 * (tile & 1) + 1), inside)
            fence_async_shared()
        for _step in range(count - 1):
            here = tile & 1
            highest, weight, total = _weighed(
                scores, highest, weight, total, latents, keys, shrinks, shrunk, weighed, here, factor
            )  # fmt: skip
            tile += 1
            scores = _scores(query, turned, latents, keys, brought, tile & 1, tile >> 1 & 1)
            total = warpgroup_mma_wait(3, deps=[total])
            mbarrier.arrive(used.index(here), count=1)
            scores = warpgroup_mma_wait(0, deps=[scores])
        here = tile & 1
        highest, weight, total = _weighed(
            scores, highest, weight, total, latents, keys, shrinks, shrunk, weighed, here, factor
        )  # fmt: skip
        tile += 1
        which = (part - begin) // split & 1
        results.index(2 * which).store(highest)
        results.index(2 * which + 1).store(weight)
        mbarrier.arrive(summed.index(which), count=1)
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(used.index(here), count=1)
        highest = gl.convert_layout(highest, sums)
        weight = gl.convert_layout(weight, sums)
        joined_highest, joined_weight = _finish(
            0, place, part, end, split, total, highest, weight, joined_highest, joined_weight
        )  # fmt: skip


@gluon.jit
def _scores(query, turned, latents, keys, brought, here, phase):
    """Of a tile, as they will be."""
    nothing = gl.zeros([_ROWS, _ROWS], gl.float32, _SCORES)
    mbarrier.wait(brought.index(2 * here), phase)
    scores = warpgroup_mma(
        query.index(0), latents.index(2 * here).permute([1, 0]), nothing, use_acc=False, is_async=True
    )
    mbarrier.wait(brought.index(2 * here + 1), phase)
    scores = warpgroup_mma(query.index(1), latents.index(2 * here + 1).permute([1, 0]), scores, is_async=True)
    return warpgroup_mma(turned, keys.index(here).permute([1, 0]), scores, is_async=True)


@gluon.jit
def _weighed(scores, highest, weight, total, latents, keys, shrinks, shrunk, weighed, here, factor):
    """With a tile of `scores` more: the highest, the sum of weights, and the first half of the sum as it will be."""
    higher = gl.maximum(highest, gl.max(scores, axis=1) * factor)
    shrink = gl.exp2(highest - higher)
    shrinks.index(here).store(shrink)
    mbarrier.arrive(shrunk.index(here), count=1)
    weights = gl.exp2(scores * factor - higher[:, None])
    own = weights.to(latents.dtype)
    # Where the rotary keys were: nobody needs them any more.
    keys.index(here).store(own)
    fence_async_shared()
    mbarrier.arrive(weighed.index(here), count=1)
    weight = weight * shrink + gl.sum(weights, axis=1)
    total = total * gl.convert_layout(shrink, gl.SliceLayout(1, _TOTAL))[:, None]
    own = gl.convert_layout(own, gl.DotOperandLayout(0, _TOTAL, 2))
    return higher, weight, warpgroup_mma(own, latents.index(2 * here), total, is_async=True)


@gluon.jit
def _sum(tiles, place, span):
    """The second half of the sums."""
    latents, keys, shrinks, results, _, used, shrunk, weighed, summed = tiles
    begin, end, split = span
    rows: gl.constexpr = gl.SliceLayout(1, _TOTAL)
    joined_highest = gl.full([_ROWS], float("-inf"), gl.float32, rows)
    joined_weight = gl.zeros([_ROWS], gl.float32, rows)
    tile = 0
    for part in range(begin, end, split):
        total = gl.zeros([_ROWS, _HALF], gl.float32, _TOTAL)
        for _step in range(gl.cdiv(gl.minimum(part + split, end) - part, _ROWS)):
            here = tile & 1
            phase = tile >> 1 & 1
            mbarrier.wait(shrunk.index(here), phase)
            total = total * shrinks.index(here).load(rows)[:, None]
            mbarrier.wait(weighed.index(here), phase)
            total = warpgroup_mma(keys.index(here), latents.index(2 * here + 1), total, is_async=True)
            total = warpgroup_mma_wait(0, deps=[total])
            mbarrier.arrive(used.index(here), count=1)
            tile += 1
        index = (part - begin) // split
        which = index & 1
        mbarrier.wait(summed.index(which), index >> 1 & 1)
        highest = results.index(2 * which).load(rows)
        weight = results.index(2 * which + 1).load(rows)
        joined_highest, joined_weight = _finish(
            1, place, part, end, split, total, highest, weight, joined_highest, joined_weight
        )  # fmt: skip


@gluon.jit
def _clear(half, first):
    """Zeros from row `first` on: such entries may hold anything, and 0 * NaN is NaN."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row = gl.arange(0, _ROWS, layout=gl.SliceLayout(1, layout))[:, None]
    for block in gl.static_range(_HALF // _COLUMNS):
        piece = half.slice(block * _COLUMNS, _COLUMNS, dim=1)
        piece.store(gl.where(row < first, piece.load(layout), 0.0))


@gluon.jit
def _finish(half: gl.constexpr, place, part, end, split, total, highest, weight, joined_highest, joined_weight):
    """What a part comes to, of one half of the values: kept for `merge_kernel`, or joined to the parts before it as
    that would; the result behind the last one."""
    out_ptr, partial_ptr, weights_ptr, seq, num_seqs, first_head, heads, length, together = place
    head = first_head + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, _TOTAL))
    column = half * _HALF + gl.arange(0, _HALF, layout=gl.SliceLayout(0, _TOTAL))[None, :]
    inside = head < heads
    row = (gl.program_id(2).to(gl.int64) * heads + head) * gl.num_programs(1) + gl.program_id(1)
    partial_ptr += row[:, None] * (2 * _HALF) + column
    if (together == 1) & (length > split):
        gl.store(partial_ptr, total, mask=inside[:, None])
        if half == 0:
            gl.store(weights_ptr + row * 2, highest, mask=inside)
            gl.store(weights_ptr + row * 2 + 1, weight, mask=inside)
    else:
        higher = gl.maximum(joined_highest, highest)
        shrink = gl.exp2(joined_highest - higher)
        share = gl.exp2(highest - higher)
        weight = gl.fma(joined_weight, shrink, weight * share)
        if part > 0:
            before = gl.load(partial_ptr, mask=inside[:, None], other=0.0)
            total = gl.fma(before, shrink[:, None], total * share[:, None])
        if part + split < end:
            gl.store(partial_ptr, total, mask=inside[:, None])
        else:
            target = out_ptr + (head.to(gl.int64) * num_seqs + seq)[:, None] * (2 * _HALF) + column
            gl.store(target, (total / weight[:, None]).to(out_ptr.dtype.element_ty), mask=inside[:, None])
        highest = higher
    return highest, weight
