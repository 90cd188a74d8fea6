"""Compressed entries in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels import float4
from kernels.index_cache.reference import hadamard, key_rows, quantise, write_keys
from kernels.packed_entries.reference import entry_rows, write_entries
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.rms_norm.reference import normed
from kernels.window_entries.reference import turn_last


class Compression(NamedTuple):
    """An entry is made of `ratio` tokens, or of twice as many if they `overlap`. `base` [ratio, width] float32 is added
    to the gate of each place. The entry is normed with `norm` [dim] and `eps`. `keys`: they are an indexer's, which in
    pages of bytes are in MXFP4 with `mxfp4`, and else in e4m3."""

    ratio: int
    overlap: bool
    base: Tensor
    norm: Tensor
    eps: float
    keys: bool = False
    mxfp4: bool = False


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
    """Keep what new tokens add to entries, and write the entries that they complete.

    Entry w of a sequence is the sum over tokens ratio * w .. ratio * (w + 1) - 1 of softmax(gate) * value, for each
    channel by itself; with an overlap also over those of entry w - 1, whose values and gates are the first half of
    theirs, while those of w itself are the second. It is rounded to `dtype`, normed, and its last R numbers are turned
    as at position ratio * w. An indexer's keys then go through a Hadamard transform where pages are of bytes.

    Args:
        projected: [T, 2 * width] float32, values and then gates, with strided rows; width is dim, or 2 * dim with an
            overlap.
        positions: [T], int64.
        cos_sin: [max_position, R].
        tail: [states, places, 2 * width] float32: values and gates (with their base) of a sequence's last tokens, each
            at its position modulo the places, which are `ratio` or with an overlap twice as many, and one more for each
            draft that may be rejected. Updated *in place*.
        rows: [S] int64, each sequence's row of `tail`.
        pages: [blocks, block_size / ratio, dim], or their bytes [blocks, n]: packed entries, or as `index_cache` has
            its keys. Updated *in place*.
        metadata: its `block_tables` are of blocks of block_size tokens, a multiple of the ratio.
    """
    width, kept, ratio = projected.shape[1] // 2, tail.shape[1], compression.ratio
    new = projected.clone()
    new[:, width:] += compression.base[positions % ratio]
    decodes, start = metadata.num_decodes, 0
    tail[rows[:decodes], positions[:decodes] % kept] = new[:decodes]  # a draft's entry is made of those before it
    for seq, (count, length) in enumerate(zip(metadata.query_lens, metadata.context_lens, strict=True)):
        first = length - count
        if first // ratio < length // ratio:
            own = new[start : start + count]
            made = _completed(own, tail[rows[seq]], first, compression).to(dtype)
            entries = torch.arange(first // ratio, length // ratio, device=tail.device)
            _write(made, entries, metadata.block_tables[seq], compression, cos_sin, pages)
        if seq >= decodes:
            last = slice(max(start + count - kept, start), start + count)
            tail[rows[seq], positions[last] % kept] = new[last]
        start += count


def _completed(new: Tensor, tail: Tensor, first: int, compression: Compression) -> Tensor:
    """The entries [W, dim] that the tokens from `first` on complete, before they are normed."""
    ratio, width, length = compression.ratio, new.shape[1] // 2, first + len(new)
    begin = max(first // ratio - compression.overlap, 0)  # with the entry before, where that is taken in
    old = tail[torch.arange(begin * ratio, first, device=tail.device) % len(tail)]
    tokens = torch.cat((old, new))[: (length // ratio - begin) * ratio]
    windows = tokens.unflatten(0, (-1, ratio)).unflatten(-1, (2, width))  # [W, ratio, 2, width]
    made = _overlapping(windows) if compression.overlap else _alone(windows)
    return made[first // ratio - begin :]


def _alone(windows: Tensor) -> Tensor:
    """[W, ratio, 2, dim] -> [W, dim]."""
    values, gates = windows.unbind(2)
    return (values * gates.softmax(dim=1)).sum(dim=1)


def _overlapping(windows: Tensor) -> Tensor:
    """[W, ratio, 2, 2 * dim] -> [W, dim]: before the first of them there is nothing."""
    before, own = windows.chunk(2, dim=-1)
    nothing = torch.zeros_like(before[:1])
    nothing[:, :, 1] = -torch.inf
    return _alone(torch.cat((torch.cat((nothing, before[:-1])), own), dim=1))


def _write(
    made: Tensor, entries: Tensor, blocks: Tensor, compression: Compression, cos_sin: Tensor, pages: Tensor
) -> None:
    made = normed(made, compression.norm.to(made.dtype), compression.eps)
    turn_last(made.unsqueeze(1), entries * compression.ratio, cos_sin)
    dim, rope_dim = made.shape[1], cos_sin.shape[-1]
    mxfp4 = compression.mxfp4
    rows = key_rows(pages, dim, mxfp4) if compression.keys else entry_rows(pages, dim, rope_dim)
    slots = blocks[entries // rows].long() * rows + entries % rows
    if compression.keys and pages.dtype == torch.uint8:
        write_keys(*(float4.quantise if mxfp4 else quantise)(hadamard(made)), pages, slots)
    else:
        write_entries(made, pages, slots, rope_dim)
