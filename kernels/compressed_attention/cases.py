"""Calls that launch every variant of attention over compressed entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.compressed_attention import variants
from kernels.compressed_attention.reference import Entries
from kernels.compressed_attention.variants import WINDOW
from kernels.indexer.chosen import Chosen
from kernels.packed_entries import entry_bytes, page_bytes
from kernels.packed_entries.reference import write_entries
from kernels.packed_entries.variants import DIM, ROPE
from kernels.paged_attention.cases import place
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies
from kernels.selection import Context

_DAMAGE = 0xFF  # in all bytes that no sequence owns: NaN as a code, as a number that turns and as a scale


class Shape(NamedTuple):
    """`queries` and `contexts` are tokens of each sequence, new and in all; sequences that decode come first. With a
    `ratio` of 0 there is the window alone; with a `top_k` entries are chosen. So many `drafts` follow the first decode,
    over its ring and its blocks."""

    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    heads: int
    ratio: int = 0
    top_k: int = 0
    block_size: int = 256
    drafts: int = 0


class Batch(NamedTuple):
    query: Tensor
    entry: Tensor
    window: Tensor
    rows: Tensor
    compressed: Entries | None
    sinks: Tensor
    positions: Tensor
    cos_sin: Tensor
    metadata: AttentionMetadata


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for dtype in variants.DTYPES if model is None else (model.dtype,):
        for tile in variants.tiles(arch) if model is None else (variants.tile_of(arch, model.num_heads),):
            heads = tile.rows - 3 if model is None else model.num_heads
            # Decodes of one part and of two, and a prefill that goes on beyond its ring behind them.
            yield _case(Shape((1, 1, 1, 3), (1, 140, 1000, 170), heads, 4, 230), dtype)
            yield _case(Shape((1, 1, 4), (27000, 130, 6), heads, 128), dtype)
            yield _case(Shape((1, 3), (150, 130), heads), dtype)
            yield _case(Shape((1, 1, 1, 1, 3), (140, 141, 142, 9, 170), heads, drafts=2), dtype)
            if model is None or model.index_heads:
                yield _case(Shape((1, 1, 1, 3), (140, 141, 142, 9), heads, 4, 20, drafts=2), dtype)
                continue
            return


def _case(shape: Shape, dtype: str) -> Case:
    kind = getattr(torch, dtype)
    return Case(f"{shape} {dtype}", lambda attention, device: _run(attention, shape, kind, device), TOLERANCES[kind])


def _run(attention: Callable[..., Any], shape: Shape, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    made = batch(shape, dtype, device)
    out = attention(*made, WINDOW)
    return [out, made.window]


def batch(shape: Shape, dtype: torch.dtype, device: torch.device) -> Batch:
    """What nobody owns holds NaN."""
    placed = place(shape.queries, shape.contexts, shape.block_size, device)
    tokens, states = sum(shape.queries), len(shape.queries) + 2
    ring = WINDOW + shape.drafts
    window = _damaged(states, ring, device)
    rows = torch.randperm(states, generator=torch.Generator().manual_seed(3))[: len(shape.queries)].to(device)
    share_first(rows, placed.metadata, shape.drafts)
    for seq, (count, length) in enumerate(zip(shape.queries, shape.contexts, strict=True)):
        if 0 < seq <= shape.drafts:
            continue
        before = torch.arange(max(length - count - ring, 0), length - count, device=device)
        slots = rows[seq] * ring + before % ring
        write_entries(randn((len(before), DIM), dtype, device, seed=seq), window, slots, ROPE)
    compressed = None
    if shape.ratio:
        size = shape.block_size // shape.ratio
        pages = _damaged(placed.num_blocks, size, device)
        slots = _slots(shape, placed.metadata, size)
        write_entries(randn((len(slots), DIM), dtype, device, seed=51), pages, slots, ROPE)
        compressed = Entries(pages, shape.ratio, _chosen(shape, placed.metadata, size) if shape.top_k else None)
    positions = [torch.arange(c - q, c) for q, c in zip(shape.queries, shape.contexts, strict=True)]
    table = cos_sin_table(*inverse_frequencies(ROPE, 10000.0), max(shape.contexts), torch.float32)
    return Batch(
        randn((tokens, shape.heads, DIM), dtype, device, seed=52),
        randn((tokens, DIM), dtype, device, seed=53),
        window,
        rows,
        compressed,
        randn((shape.heads,), torch.float32, device, seed=54) * 2,
        torch.cat(positions).to(device),
        table.to(device),
        placed.metadata,
    )


def share_first(rows: Tensor, metadata: AttentionMetadata, drafts: int) -> None:
    """Let the sequences behind the first be its drafts."""
    rows[1 : 1 + drafts] = rows[0].clone()
    metadata.block_tables[1 : 1 + drafts] = metadata.block_tables[:1].clone()


def _damaged(pages: int, rows: int, device: torch.device) -> Tensor:
    each = entry_bytes(DIM, ROPE)
    made = torch.full((pages, page_bytes(rows, each)), _DAMAGE, dtype=torch.uint8, device=device)
    return made[:, : rows * each]


def _slots(shape: Shape, metadata: AttentionMetadata, size: int) -> Tensor:
    """Where all compressed entries of all sequences lie."""
    found = []
    for seq, length in enumerate(shape.contexts):
        if seq < shape.drafts:
            continue  # the last draft has its entries too
        number = torch.arange(length // shape.ratio, device=metadata.block_tables.device)
        found.append(metadata.block_tables[seq, number // size].long() * size + number % size)
    return torch.cat(found)


def _chosen(shape: Shape, metadata: AttentionMetadata, size: int) -> Chosen:
    """For each query some of those that it sees."""
    order = torch.Generator().manual_seed(41)
    tables = metadata.block_tables.cpu()
    slots = torch.full((sum(shape.queries), shape.top_k), -1, dtype=torch.int32)
    counts: list[int] = []
    for seq, row in _queries(shape.queries):
        visible = (shape.contexts[seq] - shape.queries[seq] + row + 1) // shape.ratio
        number = torch.randperm(visible, generator=order)[: shape.top_k].sort().values
        slots[len(counts), : len(number)] = tables[seq, number // size] * size + (number % size).int()
        counts.append(len(number))
    device = metadata.block_tables.device
    return Chosen(slots.to(device), torch.tensor(counts, dtype=torch.int32, device=device))


def _queries(lens: Sequence[int]) -> Iterator[tuple[int, int]]:
    yield from ((seq, row) for seq, count in enumerate(lens) for row in range(count))
