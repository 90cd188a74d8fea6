"""DeepSeek-V4's attention in plain torch, one sequence after the other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.compressed_attention import gathered_bytes, queries_together
from kernels.indexer.chosen import Chosen
from kernels.packed_entries import UNPACKING_BYTES
from kernels.packed_entries.reference import as_kept, entry_rows, read_entries, write_entries
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.window_entries.reference import turn_last


class Entries(NamedTuple):
    """Compressed entries in `pages`, as `compressor` writes them: one of every `ratio` tokens. Queries see those that
    were `chosen` for them, or all."""

    pages: Tensor
    ratio: int
    chosen: Chosen | None = None


def compressed_attention(
    query: Tensor,
    entry: Tensor,
    window: Tensor,
    rows: Tensor,
    compressed: Entries | None,
    sinks: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    metadata: AttentionMetadata,
    size: int,
) -> Tensor:
    """Of each head the softmax, in float32, over the last `size` entries of the sequence, that of the query's own token
    included, and over compressed entries that end no later; times these entries. A sink counts in the denominator,
    as the exponential of a score that is not scaled. The last R numbers of a result are turned back by the query's
    position.

    Args:
        query: [T, heads, dim] and `entry` [T, dim], as `window_entries` gives them.
        window: [states, places, dim], or packed pages [states, n]: a sequence's last entries, each at its position
            modulo the places, of which there are `size`, and one more for each draft that may be rejected. Updated *in
            place* with `entry`.
        rows: [S], int64, each sequence's row of `window`.
        compressed: None in layers that have none.
        sinks: [heads] float32.
        positions: [T], int64.
        cos_sin: [max_position, R].

    Returns:
        [T, heads, dim], new, in the dtype of `query`.
    """
    out = torch.empty_like(query)
    dim, rope_dim, start = query.shape[-1], cos_sin.shape[-1], 0
    places = entry_rows(window, dim, rope_dim)
    for seq, (count, length) in enumerate(zip(metadata.query_lens, metadata.context_lens, strict=True)):
        first, begin = length - count, max(length - count - size + 1, 0)
        own = slice(start, start + count)
        ring = rows[seq] * places
        before = torch.arange(begin, first, device=query.device) % places
        recent = torch.cat(
            (read_entries(window, ring + before, dim, rope_dim, query.dtype), as_kept(entry[own], window, rope_dim))
        )
        place = torch.arange(begin, length, device=query.device)
        at = torch.arange(first, length, device=query.device)[:, None]
        near = (place <= at) & (place > at - size)  # [count, recent]
        far = None if compressed is None else _Far(compressed, metadata.block_tables[seq], length, query, rope_dim)
        width = len(recent) + (far.width if far is not None else 0)
        copied = far.copied if far is not None else 0
        together = queries_together(gathered_bytes(query.shape[1], width, copied))
        for low in range(0, count, together):
            part = slice(low, min(low + together, count))
            of_all = slice(start + part.start, start + part.stop)
            parts = [(recent, near[part])]
            if far is not None:
                parts.append(far.seen(of_all, at[part]))
            out[of_all] = _attend(query[of_all], parts, sinks)
        last = slice(max(count - size, 0), count)
        write_entries(entry[own][last], window, ring + at[last, 0] % places, rope_dim)
        start += count
    turn_last(out, positions, cos_sin, back=True)
    return out


class _Far:
    """The compressed entries of one sequence: `width` of them are looked at by each query, which copies `copied`
    bytes for that."""

    def __init__(self, compressed: Entries, blocks: Tensor, length: int, query: Tensor, rope_dim: int) -> None:
        self._compressed, self._rope_dim, self._like = compressed, rope_dim, query
        dim = query.shape[-1]
        if compressed.chosen is None:
            number = torch.arange(length // compressed.ratio, device=query.device)
            size = entry_rows(compressed.pages, dim, rope_dim)
            slots = blocks[number // size].long() * size + number % size
            self._all, self._number = read_entries(compressed.pages, slots, dim, rope_dim, query.dtype), number
            self.width, self.copied = len(number), 0
        else:
            self.width = min(compressed.chosen.slots.shape[1], length // compressed.ratio)
            packed = compressed.pages.dtype == torch.uint8
            self.copied = self.width * dim * (UNPACKING_BYTES if packed else query.element_size())

    def seen(self, queries: slice, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Entries [N, dim] that all of `queries` share or [Q, N, dim], and which of them each sees [Q, N]."""
        chosen = self._compressed.chosen
        if chosen is None:
            return self._all, self._number < (positions + 1) // self._compressed.ratio
        slots = chosen.slots[queries, : self.width].long()
        like = self._like
        entries = read_entries(
            self._compressed.pages, slots.clamp(min=0), like.shape[-1], self._rope_dim, like.dtype
        )  # [Q, N, dim]
        return entries.masked_fill_((slots < 0).unsqueeze(-1), 0), slots >= 0


def _attend(query: Tensor, parts: list[tuple[Tensor, Tensor]], sinks: Tensor) -> Tensor:
    """`query` [Q, heads, dim] over all parts together: entries, and which of them each query sees [Q, N]."""
    scale = query.shape[-1] ** -0.5
    scores = [
        (query @ entries.transpose(-1, -2)).float().mul_(scale).masked_fill_(~seen.unsqueeze(1), -torch.inf)
        for entries, seen in parts
    ]
    sink = sinks.float()[None, :, None].expand(len(query), -1, 1)
    widths = [seen.shape[1] for _, seen in parts]
    weights = torch.cat((*scores, sink), dim=-1).softmax(dim=-1)[..., :-1].to(query.dtype).split(widths, dim=-1)
    results: list[Tensor] = [weight @ entries for weight, (entries, _) in zip(weights, parts, strict=True)]
    return results[0] if len(results) == 1 else results[0].add_(results[1])
