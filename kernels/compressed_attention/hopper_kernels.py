"""Decodes of attention over compressed entries on sm_90, in Gluon, as `mla_attention.hopper_kernels` has them of
latents: which warps do what, where tiles lie, and who waits for whom.

A program takes 64 heads of one query and a part of what this sees, in tiles of 64 entries. Four warps bring them:
packed into registers, and from there unpacked into shared memory, the numbers of the next tile on their way while those
of this one are unpacked. The first of two warp groups computes the scores of a tile and its weights; then each group
sums half of the values, and the matrix units go on with the scores of the next tile behind that. Every part is left for
`merge_kernel`, which has the sinks and turns what is to be turned.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.compressed_attention.variants import WINDOW
from kernels.dependent_launch import wait_for_previous
from kernels.packed_entries import GROUP, data_bytes
from kernels.packed_entries.variants import DIM, ROPE

_LOG2E = gl.constexpr(1.4426950408889634)
_ROWS = gl.constexpr(64)  # heads of a program, entries of a tile
_HALF = gl.constexpr(DIM // 2)  # of the numbers of an entry
_GROUP = gl.constexpr(GROUP)
_WINDOW = gl.constexpr(WINDOW)
_UNITS = gl.constexpr(data_bytes(DIM, ROPE) // 16)  # of an entry's numbers, in 16 bytes
_TURNED = gl.constexpr((DIM - ROPE) // 4)  # where those that turn begin, in 4 bytes
_SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
_IN_WORDS = gl.constexpr(gl.NVMMASharedLayout(128, 32, 2))
_PACKED = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))
_ENTRIES = gl.constexpr(gl.SliceLayout(1, _PACKED.value))
_SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
_TOTAL = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
_STORED = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit(
    do_not_specialize=[
        "first_seq", "heads", "window_stride16", "page_stride16", "page_shift", "table_width", "top_k", "ratio",
        "split", "scale",
    ],
    do_not_specialize_on_alignment=["rows_ptr", "table_ptr", "slots_ptr", "counts_ptr", "seq_lens_ptr"],
)  # fmt: skip
def hopper_decode_kernel(
    query_ptr,  # [S, heads, DIM], one token a sequence
    partial_ptr,  # [sequences of this launch, heads, parts, DIM] float32
    weights_ptr,  # [sequences of this launch, heads, parts, 2] float32
    window_ptr,  # as of `attend_kernel`: byte by byte,
    window_scales_ptr,  # and as the scales of an entry
    pages_ptr,
    pages_scales_ptr,
    rows_ptr,  # [S] int64, of window
    table_ptr,  # [S, table_width]
    slots_ptr,  # [S, top_k], where CHOSEN
    counts_ptr,  # [S], where CHOSEN
    seq_lens_ptr,  # [S]
    first_seq,  # of this launch
    heads,
    window_stride16,
    page_stride16,
    page_shift,  # of two, entries of a page
    table_width,
    top_k,
    ratio,  # tokens of a compressed entry
    split,  # places of a part, whole tiles
    scale,
    CHOSEN: gl.constexpr,
):
    wait_for_previous()
    seq = (first_seq + gl.program_id(2)).to(gl.int64)
    length = gl.load(seq_lens_ptr + seq)
    far = gl.load(counts_ptr + seq) if CHOSEN else length // ratio
    begin = gl.program_id(1) * split
    end = gl.minimum(_WINDOW + far, begin + split)
    if begin < end:
        dtype: gl.constexpr = query_ptr.dtype.element_ty
        query = gl.allocate_shared_memory(dtype, [2, _ROWS, _HALF], _SHARED)
        entries = gl.allocate_shared_memory(dtype, [4, _ROWS, _HALF], _SHARED)  # both halves of two tiles
        weights = gl.allocate_shared_memory(dtype, [2, _ROWS, _ROWS], _SHARED)
        shrinks = gl.allocate_shared_memory(gl.float32, [2, _ROWS], _STORED)
        # Of both tiles: brought, used up, how much sums shrink, weights.
        brought = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        used = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        shrunk = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        weighed = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        for tile in gl.static_range(2):
            mbarrier.init(brought.index(tile), count=1)
            mbarrier.init(used.index(tile), count=2)
            mbarrier.init(shrunk.index(tile), count=1)
            mbarrier.init(weighed.index(tile), count=1)
        first_head = gl.program_id(0) * _ROWS
        tiles = (entries, weights, shrinks, brought, used, shrunk, weighed)
        span = (begin, end, length - 1)
        place = (partial_ptr, weights_ptr, first_head, heads)
        window = (window_ptr, window_scales_ptr, gl.load(rows_ptr + seq), window_stride16)
        pages = (pages_ptr, pages_scales_ptr, page_stride16, page_shift)
        # Where the pages of entries are found, or their slots.
        places_ptr = slots_ptr + seq * top_k if CHOSEN else table_ptr + seq * table_width
        gl.warp_specialize(
            [
                (_weigh, (query_ptr + seq * heads * (2 * _HALF), query, tiles, place, span, scale * _LOG2E)),
                (_sum, (tiles, place, span)),
                (_bring, (window, pages, places_ptr, tiles, span, CHOSEN)),
            ],
            [4, 4],
            [160, 120],
        )


@gluon.jit
def _bring(window, pages, places_ptr, tiles, span, CHOSEN: gl.constexpr):
    """All tiles. What is not seen becomes zeros, for what others own may be NaN."""
    entries, _, _, brought, used, _, _ = tiles
    begin, end, _ = span
    found = _found(begin, end, pages, places_ptr, CHOSEN)
    words, scales, seen = _pointers(begin, span, found, window, pages, CHOSEN)
    exponents = gl.load(scales, mask=seen, other=0)
    plain_0 = _plain(words, seen, 0)
    plain_1 = _plain(words, seen, 1)
    plain_2 = _plain(words, seen, 2)
    plain_3 = _plain(words, seen, 3)
    plain_4 = _plain(words, seen, 4)
    plain_5 = _plain(words, seen, 5)
    plain_6 = _plain(words, seen, 6)
    turned = _turned(words, seen)
    found = _found(begin + _ROWS, end, pages, places_ptr, CHOSEN)
    for first in range(begin, end, _ROWS):
        tile = (first - begin) // _ROWS
        here = tile & 1
        words, scales, seen = _pointers(first + _ROWS, span, found, window, pages, CHOSEN)
        found = _found(first + 2 * _ROWS, end, pages, places_ptr, CHOSEN)
        low = entries.index(2 * here)
        high = entries.index(2 * here + 1)
        mbarrier.wait(used.index(here), (tile >> 1 & 1) ^ 1)
        # Of the next tile each group is fetched into the registers of this one's.
        _unpack(low, 0, plain_0, exponents, 0)
        plain_0 = _plain(words, seen, 0)
        _unpack(low, 1, plain_1, exponents, 1)
        plain_1 = _plain(words, seen, 1)
        _unpack(low, 2, plain_2, exponents, 2)
        plain_2 = _plain(words, seen, 2)
        _unpack(low, 3, plain_3, exponents, 3)
        plain_3 = _plain(words, seen, 3)
        _unpack(high, 0, plain_4, exponents, 4)
        plain_4 = _plain(words, seen, 4)
        _unpack(high, 1, plain_5, exponents, 5)
        plain_5 = _plain(words, seen, 5)
        _unpack(high, 2, plain_6, exponents, 6)
        plain_6 = _plain(words, seen, 6)
        _unpack_turned(high, turned)
        turned = _turned(words, seen)
        exponents = gl.load(scales, mask=seen, other=0)
        fence_async_shared()
        mbarrier.arrive(brought.index(here), count=1)


@gluon.jit
def _found(first, end, pages, places_ptr, CHOSEN: gl.constexpr):
    """Of the tile that begins at place `first`: slots of compressed entries that were chosen, or their pages."""
    _, _, _, page_shift = pages
    place = first - _WINDOW + gl.arange(0, _ROWS, layout=_ENTRIES)
    inside = (place >= 0) & (place < end - _WINDOW)
    return gl.load(places_ptr + (place if CHOSEN else place >> page_shift), mask=inside, other=0)


@gluon.jit
def _pointers(first, span, found, window, pages, CHOSEN: gl.constexpr):
    """To the entries of a tile, in 4 bytes, and to their scales; and which are seen. A tile lies within the window or
    behind it."""
    window_ptr, window_scales_ptr, ring, window_stride16 = window
    pages_ptr, pages_scales_ptr, page_stride16, page_shift = pages
    _, end, position = span
    column = first + gl.arange(0, _ROWS, layout=_ENTRIES)
    if CHOSEN:
        page = (found >> page_shift).to(gl.int64)
        row = found & ((1 << page_shift) - 1)
    else:
        page = found.to(gl.int64)
        row = (column - _WINDOW) & ((1 << page_shift) - 1)
    words_ptr = pages_ptr.to(gl.pointer_type(gl.int32), bitcast=True)
    words = words_ptr + (page * page_stride16 + row * _UNITS) * 4
    scales = pages_scales_ptr + (page * (page_stride16 * 2) + ((_UNITS * 2) << page_shift) + row)
    seen = column < end
    if first < _WINDOW:
        words_ptr = window_ptr.to(gl.pointer_type(gl.int32), bitcast=True)
        words = words_ptr + (ring * window_stride16 + column * _UNITS) * 4
        scales = window_scales_ptr + (ring * (window_stride16 * 2) + _WINDOW * (_UNITS * 2) + column)
        seen = column <= position
    return words, scales, seen


@gluon.jit
def _plain(words, seen, group: gl.constexpr):
    """One group of the numbers in e4m3, four a word."""
    place = group * _GROUP // 4 + gl.arange(0, _GROUP // 4, layout=gl.SliceLayout(0, _PACKED))
    return gl.load(words[:, None] + place[None, :], mask=seen[:, None], other=0)


@gluon.jit
def _turned(words, seen):
    """Those that turn, two a word."""
    place = _TURNED + gl.arange(0, _GROUP // 2, layout=gl.SliceLayout(0, _PACKED))
    return gl.load(words[:, None] + place[None, :], mask=seen[:, None], other=0)


@gluon.jit
def _unpack(half, place: gl.constexpr, plain, exponents, group: gl.constexpr):
    """Into the columns of a tile, by the power of two that each entry has for the group.

    The bits of a code are moved into a bfloat16's place, whose exponent counts from 2^120 further down; or into a
    float16's, 2^8 further down. Instructions that convert would take most of the time. NaN becomes 480 here: an entry
    is normed as a whole, so that those of its numbers that turn are NaN too.
    """
    bits = ((exponents >> (8 * group)) & 255).to(gl.int32) << 23
    factor = bits.to(gl.float32, bitcast=True).to(half.dtype).to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
    factor = (factor | (factor << 16))[:, None].broadcast_to([_ROWS, _GROUP // 4])
    IS_BF16: gl.constexpr = half.dtype == gl.bfloat16
    PAIR: gl.constexpr = "bf16x2" if IS_BF16 else "f16x2"
    MOVE: gl.constexpr = "4" if IS_BF16 else "1"
    MASK: gl.constexpr = "0x07F007F0" if IS_BF16 else "0x3F803F80"
    RAISE: gl.constexpr = "0x7B807B80" if IS_BF16 else "0x5C005C00"  # 2^120 or 2^8, twice
    first, second = gl.inline_asm_elementwise(
        "{ .reg .b32 x, y, u, v, r; mov.b32 r, " + RAISE + "; prmt.b32 x, $2, 0, 0x1404; prmt.b32 y, $2, 0, 0x3424;"
        "shr.u32 u, x, " + MOVE + "; shr.u32 v, y, " + MOVE + "; and.b32 x, x, 0x80008000; and.b32 y, y, 0x80008000;"
        "lop3.b32 x, u, " + MASK + ", x, 0xEA; lop3.b32 y, v, " + MASK + ", y, 0xEA;"
        "mul." + PAIR + " x, x, r; mul." + PAIR + " y, y, r; mul." + PAIR + " $0, x, $3; mul." + PAIR + " $1, y, $3; }",
        "=r,=r,r,r", [plain, factor], dtype=(gl.int32, gl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    pairs = gl.reshape(gl.join(first, second), [_ROWS, _GROUP // 2])
    _words(half).slice(place * (_GROUP // 2), _GROUP // 2, dim=1).store(pairs)


@gluon.jit
def _unpack_turned(half, turned):
    """Into the last columns of a tile: they are in bfloat16."""
    if half.dtype != gl.bfloat16:
        turned = gl.inline_asm_elementwise(
            "{ .reg .f32 e, f; .reg .b32 x, y; shl.b32 x, $1, 16; and.b32 y, $1, 0xffff0000; mov.b32 e, x;"
            "mov.b32 f, y; cvt.rn.f16x2.f32 $0, f, e; }",
            "=r,r", [turned], dtype=gl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    _words(half).slice(3 * (_GROUP // 2), _GROUP // 2, dim=1).store(turned)


@gluon.jit
def _words(half):
    """The same in 4 bytes."""
    return half._reinterpret(gl.int32, [_ROWS, _HALF // 2], _IN_WORDS)


@gluon.jit
def _load_query(query_ptr, query, first_head, heads):
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    head = first_head + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, _GROUP, layout=gl.SliceLayout(0, layout))
    place = query_ptr + head[:, None] * (2 * _HALF) + column[None, :]
    for half in gl.static_range(2):
        for first in gl.static_range(0, _HALF, _GROUP):
            piece = gl.load(place + (half * _HALF + first), mask=(head < heads)[:, None], other=0.0)
            query.index(half).slice(first, _GROUP, dim=1).store(piece)


@gluon.jit
def _weigh(query_ptr, query, tiles, place, span, factor):
    """Scores and weights, and the first half of the sums."""
    entries, weights, shrinks, brought, used, shrunk, weighed = tiles
    _, weights_ptr, first_head, heads = place
    begin, end, _ = span
    _load_query(query_ptr, query, first_head, heads)
    fence_async_shared()
    rows: gl.constexpr = gl.SliceLayout(1, _SCORES)
    highest = gl.full([_ROWS], -1e30, gl.float32, rows)  # of nothing: any number whose power of two is 0
    weight = gl.zeros([_ROWS], gl.float32, rows)
    total = gl.zeros([_ROWS, _HALF], gl.float32, _TOTAL)
    scores = _scores(query, entries, brought, 0, 0)
    scores = warpgroup_mma_wait(0, deps=[scores])
    tile = 0
    for first in range(begin, end - _ROWS, _ROWS):
        here = tile & 1
        highest, weight, total = _weighed(
            _seen(scores, first, span), highest, weight, total, entries, weights, shrinks, shrunk, weighed, here, factor
        )  # fmt: skip
        tile += 1
        scores = _scores(query, entries, brought, tile & 1, tile >> 1 & 1)
        total = warpgroup_mma_wait(2, deps=[total])
        mbarrier.arrive(used.index(here), count=1)
        scores = warpgroup_mma_wait(0, deps=[scores])
    highest, weight, total = _weighed(
        _seen(scores, begin + tile * _ROWS, span), highest, weight, total, entries, weights, shrinks, shrunk, weighed,
        tile & 1, factor,
    )  # fmt: skip
    head = first_head + gl.arange(0, _ROWS, layout=rows)
    part = (gl.program_id(2).to(gl.int64) * heads + head) * gl.num_programs(1) + gl.program_id(1)
    gl.store(weights_ptr + part * 2, highest, mask=head < heads)
    gl.store(weights_ptr + part * 2 + 1, weight, mask=head < heads)
    total = warpgroup_mma_wait(0, deps=[total])
    _finish(0, place, total)


@gluon.jit
def _scores(query, entries, brought, here, phase):
    """Of a tile, as they will be."""
    nothing = gl.zeros([_ROWS, _ROWS], gl.float32, _SCORES)
    mbarrier.wait(brought.index(here), phase)
    scores = warpgroup_mma(
        query.index(0), entries.index(2 * here).permute([1, 0]), nothing, use_acc=False, is_async=True
    )
    return warpgroup_mma(query.index(1), entries.index(2 * here + 1).permute([1, 0]), scores, is_async=True)


@gluon.jit
def _seen(scores, first, span):
    """Those of a tile that count."""
    _, end, position = span
    column = first + gl.arange(0, _ROWS, layout=gl.SliceLayout(0, _SCORES))
    seen = gl.where(column < _WINDOW, column <= position, column < end)
    return gl.where(seen[None, :], scores, float("-inf"))


@gluon.jit
def _weighed(scores, highest, weight, total, entries, weights, shrinks, shrunk, weighed, here, factor):
    """With a tile of `scores` more: the highest, the sum of weights, and the first half of the sum as it will be."""
    higher = gl.maximum(highest, gl.max(scores, axis=1) * factor)
    shrink = gl.exp2(highest - higher)
    shrinks.index(here).store(shrink)
    mbarrier.arrive(shrunk.index(here), count=1)
    shares = gl.exp2(scores * factor - higher[:, None])
    own = shares.to(entries.dtype)
    weights.index(here).store(own)
    fence_async_shared()
    mbarrier.arrive(weighed.index(here), count=1)
    weight = weight * shrink + gl.sum(shares, axis=1)
    total = total * gl.convert_layout(shrink, gl.SliceLayout(1, _TOTAL))[:, None]
    own = gl.convert_layout(own, gl.DotOperandLayout(0, _TOTAL, 2))
    return higher, weight, warpgroup_mma(own, entries.index(2 * here), total, is_async=True)


@gluon.jit
def _sum(tiles, place, span):
    """The second half of the sums."""
    entries, weights, shrinks, _, used, shrunk, weighed = tiles
    begin, end, _ = span
    total = gl.zeros([_ROWS, _HALF], gl.float32, _TOTAL)
    for first in range(begin, end, _ROWS):
        tile = (first - begin) // _ROWS
        here = tile & 1
        phase = tile >> 1 & 1
        mbarrier.wait(shrunk.index(here), phase)
        total = total * shrinks.index(here).load(gl.SliceLayout(1, _TOTAL))[:, None]
        mbarrier.wait(weighed.index(here), phase)
        total = warpgroup_mma(weights.index(here), entries.index(2 * here + 1), total, is_async=True)
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(used.index(here), count=1)
    _finish(1, place, total)


@gluon.jit
def _finish(half: gl.constexpr, place, total):
    """One half of what a part comes to."""
    partial_ptr, _, first_head, heads = place
    head = first_head + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, _TOTAL))
    column = half * _HALF + gl.arange(0, _HALF, layout=gl.SliceLayout(0, _TOTAL))
    part = (gl.program_id(2).to(gl.int64) * heads + head) * gl.num_programs(1) + gl.program_id(1)
    gl.store(partial_ptr + part[:, None] * (2 * _HALF) + column[None, :], total, mask=(head < heads)[:, None])
