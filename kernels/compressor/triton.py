"""Compressed entries in Triton. A program makes one entry, channel by channel in registers, of tokens that are new and
of those in the tail; it norms, turns and packs it, and writes it. Of a decode it first keeps its token; where there may
be drafts, whose entries are made of each other's tokens, another kernel has kept these before. That one keeps the last
tokens of a prefill afterwards, in places of tokens that its entries are made of."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.compressor import variants
from kernels.compressor.reference import Compression
from kernels.dependent_launch import wait_for_previous
from kernels.index_cache.triton import encoded, scaled
from kernels.index_cache.variants import DIM as KEY_DIM
from kernels.indexer import key_bytes
from kernels.launch import architecture, cdiv, launch
from kernels.mxfp4 import encoded as encoded_mxfp4
from kernels.packed_entries.triton import UNITS, as_pages, store_entries
from kernels.packed_entries.variants import DIM, ROPE
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.window_entries.triton import normed, turned_last

_entries = functools.cache(variants.entries)
_keep = functools.cache(variants.keep)


def compressor(
    projected: Tensor,
    compression: Compression,
    positions: Tensor,
    cos_sin: Tensor,
    tail: Tensor,
    rows: Tensor,
    pages: Tensor,
    metadata: AttentionMetadata,
    dtype: torch.dtype,
) -> None:
    """As `reference.compressor`, for bfloat16 and float16, the forms `variants.FORMS`, entries of 512 numbers or keys
    of 128, of which 64 turn, pages of bytes, and a table in float32. Lengths, and not `positions`, say where tokens
    are. Rows of `tail` and of `projected` may be strided, by a multiple of 4."""
    form = variants.Form(compression.ratio, compression.overlap, compression.keys, compression.mxfp4)
    width, kept, sequences = projected.shape[1] // 2, tail.shape[1], len(metadata.query_lens)
    dim = width // (1 + form.overlap)
    assert form in variants.FORMS, f"{form}"
    needed = form.ratio * (1 + form.overlap)
    assert kept >= needed, f"tails of {kept} tokens"
    assert dim == (KEY_DIM if form.keys else DIM), f"entries of {dim}"
    assert cos_sin.shape[1] == ROPE, f"{cos_sin.shape[1]} numbers turn"
    assert tail.stride(0) % 4 == 0, f"tails {tail.stride(0)} apart"
    assert projected.stride(0) % 4 == 0, f"rows {projected.stride(0)} apart"
    row_stride4 = projected.stride(0) // 4
    arch, name = architecture(), str(dtype).removeprefix("torch.")
    decodes, of = metadata.num_decodes, metadata
    runs = [(True, 0, decodes, 1)] if decodes else []
    if decodes < sequences:
        # A chunk that begins within an entry completes one more than it has whole ones.
        runs.append((False, decodes, sequences, max(of.query_lens[decodes:]) // form.ratio + 1))
    for is_decode, first, end, most in runs:
        variant = _entries(arch, name, form, is_decode)
        most_kept = 1 if is_decode else kept
        keeping = (
            keep_kernel, _keep(), (most_kept * cdiv(2 * width, variants.COPIED), end - first),
            projected, compression.base, tail, rows, of.query_start_loc, of.seq_lens,
            first, tail.stride(0) // 4, 2 * width // 4, row_stride4, kept, form.ratio,
        )  # fmt: skip
        if is_decode and kept > needed:
            launch(*keeping)
        if form.keys:
            page_rows, stride16 = pages.shape[1] // key_bytes(dim, form.mxfp4), pages.stride(0) // 16
            kind = torch.uint8 if variant.arguments[5] == "*u8" else torch.float8_e4m3fn
            views = pages.view(kind), pages.view(torch.float32), cos_sin  # the last is not read
        else:
            packed = as_pages(pages, variant.arguments[5])
            views, stride16, page_rows = packed.views, packed.stride16, packed.rows
        launch(
            entries_kernel, variant, (most, end - first),
            projected, compression.base, compression.norm, cos_sin, tail, *views, rows, of.block_tables,
            of.query_start_loc, of.seq_lens, first, row_stride4, tail.stride(0) // 4, kept, stride16, page_rows,
            of.block_tables.stride(0), compression.eps,
        )  # fmt: skip
        if not is_decode:
            launch(*keeping)


# Of a batch's sequences, some from the middle.
@triton.jit(
    do_not_specialize=[
        "first_seq",
        "row_stride4",
        "tail_stride4",
        "kept",
        "page_stride16",
        "page_rows",
        "table_width",
        "eps",
    ],
    do_not_specialize_on_alignment=["rows_ptr", "table_ptr", "query_start_ptr", "seq_lens_ptr"],
)
def entries_kernel(
    projected_ptr,  # [T, 2 * width] float32, rows strided: values, and gates
    base_ptr,  # [RATIO, width] float32, of the gates
    norm_ptr,  # [DIM]
    cos_sin_ptr,  # [max_position, ROPE] float32
    tail_ptr,  # [states, kept, 2 * width] float32, states strided
    codes_ptr,  # the pages: byte by byte,
    turned_ptr,  # as bfloat16, or in float32 where KEYS,
    scales_ptr,  # as the scales of an entry, unless KEYS
    rows_ptr,  # [S] int64, of the tail
    table_ptr,  # [S, table_width]
    query_start_ptr,  # [S + 1]
    seq_lens_ptr,  # [S]
    first_seq,
    row_stride4,
    tail_stride4,
    kept,  # places of a tail, at least KEPT
    page_stride16,
    page_rows,
    table_width,
    eps,
    DIM: tl.constexpr,
    ROPE: tl.constexpr,
    RATIO: tl.constexpr,
    OVERLAP: tl.constexpr,
    KEYS: tl.constexpr,
    MXFP4: tl.constexpr,
    TOKENS: tl.constexpr,
    DECODES: tl.constexpr,
):
    wait_for_previous()
    WIDTH: tl.constexpr = DIM * 2 if OVERLAP else DIM
    KEPT: tl.constexpr = RATIO * 2 if OVERLAP else RATIO
    seq = first_seq + tl.program_id(1)
    start = tl.load(query_start_ptr + seq)
    length = tl.load(seq_lens_ptr + seq)
    first = length - (tl.load(query_start_ptr + seq + 1) - start)
    own = tail_ptr + tl.load(rows_ptr + seq) * (tail_stride4 * 4)
    if DECODES:
        column = tl.arange(0, 2 * WIDTH)
        token = tl.load(projected_ptr + start.to(tl.int64) * (row_stride4 * 4) + column)
        base = tl.load(base_ptr + first % RATIO * WIDTH + (column - WIDTH), mask=column >= WIDTH, other=0.0)
        tl.store(own + first % kept * (2 * WIDTH) + column, token + base)
    entry = first // RATIO + tl.program_id(0)
    if (entry + 1) * RATIO > length:
        return
    channel = tl.arange(0, DIM)[None, :]
    new = projected_ptr + start.to(tl.int64) * (row_stride4 * 4)
    highest = tl.full((DIM,), -1e30, tl.float32)
    weight = tl.zeros((DIM,), tl.float32)
    total = tl.zeros((DIM,), tl.float32)
    before: tl.constexpr = KEPT - RATIO
    for step in range(0, KEPT, TOKENS):
        place = step + tl.arange(0, TOKENS)
        position = entry * RATIO - before + place
        seen = (position >= 0)[:, None]
        is_new = (position >= first)[:, None]
        half = tl.where(place < before, 0, WIDTH - DIM)[:, None] + channel
        at_new = new + (position - first).to(tl.int64)[:, None] * (row_stride4 * 4)
        at_old = own + ((position + kept) % kept)[:, None] * (2 * WIDTH)
        at = tl.where(is_new, at_new, at_old) + half
        value = tl.load(at, mask=seen, other=0.0)
        gate = tl.load(at + WIDTH, mask=seen, other=float("-inf"))
        gate += tl.load(base_ptr + ((position + KEPT) % RATIO)[:, None] * WIDTH + half, mask=is_new, other=0.0)
        higher = tl.maximum(highest, tl.max(gate, axis=0))
        raised = tl.exp(gate - higher[None, :])
        shrink = tl.exp(highest - higher)
        weight = weight * shrink + tl.sum(raised, axis=0)
        total = total * shrink + tl.sum(raised * value, axis=0)
        highest = higher

    TYPE: tl.constexpr = norm_ptr.dtype.element_ty
    made = (total / weight)[None, :].to(TYPE).to(tl.float32)
    made = normed(made, norm_ptr, eps, TYPE)
    made = turned_last(made, cos_sin_ptr + (entry * RATIO).to(tl.int64) * ROPE, ROPE, BACK=False).to(TYPE)
    page = tl.load(table_ptr + seq.to(tl.int64) * table_width + entry // page_rows).to(tl.int64)
    row = entry % page_rows
    if KEYS:
        shared = tl.arange(0, DIM)[:, None] & tl.arange(0, DIM)[None, :]
        shared ^= shared >> 4
        shared ^= shared >> 2
        shared ^= shared >> 1
        signs = tl.where(shared & 1 == 1, -1.0, 1.0)  # the parity of the bits that both numbers have
        wide = tl.reshape(made.to(tl.float32), [DIM, 1])
        mixed = tl.sum(wide * signs, axis=0)[None, :] * (1.0 / tl.sqrt(DIM * 1.0))
        key = mixed.to(TYPE).to(tl.float32)
        at_page = page * (page_stride16 * 16)
        # Scales lie behind all keys of a page.
        if MXFP4:
            codes, exponents = encoded_mxfp4(key, 1, DIM)
            tl.store(codes_ptr + at_page + row * (DIM // 2) + tl.arange(0, DIM // 2)[None, :], codes)
            at_scales = at_page + page_rows * (DIM // 2) + row * (DIM // 32)
            tl.store(codes_ptr + at_scales + tl.arange(0, DIM // 32)[None, :], exponents)
        else:
            code, scale = scaled(key)
            tl.store(codes_ptr + at_page + row * DIM + channel, encoded(code, codes_ptr.dtype.element_ty))
            at_scales = page * (page_stride16 * 4) + page_rows * (DIM // 4) + row + tl.zeros((1,), tl.int64)
            tl.store(turned_ptr + at_scales, scale)
    else:
        at_entry = page * page_stride16 + row * UNITS + tl.zeros((1,), tl.int64)
        at_entry_scales = page * (page_stride16 * 2) + page_rows * (UNITS * 2) + row + tl.zeros((1,), tl.int64)
        store_entries(
            made.to(tl.float32), codes_ptr + at_entry * 16, turned_ptr + at_entry * 8, scales_ptr + at_entry_scales,
            tl.full((1,), 1, tl.int1),
        )  # fmt: skip


@triton.jit(
    do_not_specialize=["first_seq", "tail_stride4", "width4", "row_stride4", "kept", "ratio"],
    do_not_specialize_on_alignment=["rows_ptr", "query_start_ptr", "seq_lens_ptr"],
)
def keep_kernel(
    projected_ptr,  # as of `entries_kernel`
    base_ptr,
    tail_ptr,
    rows_ptr,
    query_start_ptr,
    seq_lens_ptr,
    first_seq,
    tail_stride4,
    width4,  # of a token's values and gates, in 16 bytes
    row_stride4,
    kept,
    ratio,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    width = width4 * 4
    parts = tl.cdiv(width, BLOCK)
    seq = first_seq + tl.program_id(1)
    start = tl.load(query_start_ptr + seq)
    query_len = tl.load(query_start_ptr + seq + 1) - start
    place = query_len - 1 - tl.program_id(0) // parts
    if place < 0:
        return
    position = tl.load(seq_lens_ptr + seq) - query_len + place
    column = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    gate = column - width // 2
    inside = column < width
    own = projected_ptr + (start + place).to(tl.int64) * (row_stride4 * 4)
    token = tl.load(own + column, mask=inside, other=0.0)
    base = tl.load(base_ptr + position % ratio * (width // 2) + gate, mask=inside & (gate >= 0), other=0.0)
    target = tail_ptr + tl.load(rows_ptr + seq) * (tail_stride4 * 4) + position % kept * width + column
    tl.store(target, token + base, mask=inside)
