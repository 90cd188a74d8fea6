"""Calls that launch every variant of an indexer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.cases import Case, randn
from kernels.float4 import GROUP, quantise
from kernels.index_cache.reference import write_keys
from kernels.indexer import key_bytes, variants
from kernels.packed_entries import page_bytes
from kernels.paged_attention.cases import place
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.selection import Context


class Shape(NamedTuple):
    """`queries` and `contexts` are tokens of each sequence, new and in all; sequences that decode come first."""

    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    heads: int
    top_k: int
    block_size: int = 16
    ratio: int = 1  # tokens of a key
    mxfp4: bool = False  # keys and queries are in it, rather than in 8 bits


class Batch(NamedTuple):
    query: Tensor
    weights: Tensor
    cache: Tensor
    metadata: AttentionMetadata


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for heads in variants.HEADS if model is None else (model.index_heads,):
        for mxfp4 in variants.formats(model):
            yield _case(Shape((1, 1, 1, 1), (1, 530, 90, 26), heads, 70, mxfp4=mxfp4))
            yield _case(Shape((1, 18), (200, 300), heads, 33, block_size=64, mxfp4=mxfp4))
            yield _case(Shape((1, 1, 1, 18), (3, 700, 90, 300), heads, 33, block_size=64, ratio=4, mxfp4=mxfp4))
        # More scores than the choice takes from registers, and more than it takes from few.
        yield _case(Shape((1, 1), (variants.SELECTED + 500, variants.FEW_SELECTED + 300), heads, 70, 64, mxfp4=mxfp4))


def _case(shape: Shape) -> Case:
    return Case(str(shape), lambda indexer, device: _run(indexer, shape, device), 0.0)


def _run(indexer: Callable[..., Any], shape: Shape, device: torch.device) -> list[Tensor]:
    return list(indexer(*batch(shape, device), shape.top_k, shape.ratio))


def batch(shape: Shape, device: torch.device, *, scatter: bool = True, dim: int = 128) -> Batch:
    """Small whole numbers, whose sums are exact in any order and are often equal, in random blocks (`scatter`); and NaN
    in all slots that no sequence owns."""
    placed = place(shape.queries, shape.contexts, shape.block_size, device, scatter=scatter)
    size, slots, each = shape.block_size // shape.ratio, placed.slots, key_bytes(dim, shape.mxfp4)
    bytes_of = shape.block_size * each
    if shape.ratio > 1:  # padded
        bytes_of = page_bytes(size, each)
        tables = zip(placed.metadata.block_tables, shape.contexts, strict=True)
        slots = torch.cat([_slots(table, length // shape.ratio, size) for table, length in tables])
    cache = torch.full((placed.num_blocks, bytes_of), 0xFF, dtype=torch.uint8, device=device)
    cache = cache[:, : size * each]
    keys = randn((len(slots), dim), torch.float32, device, seed=31).round()
    scales = 2.0 ** randn((len(slots), 1), torch.float32, device, seed=34).round()
    tokens = sum(shape.queries)
    query = randn((tokens, shape.heads, dim), torch.float32, device, seed=32).round()
    weights = randn((tokens, shape.heads), torch.float32, device, seed=33).round() / 4
    if shape.mxfp4:  # exact, as are all numbers up to 4
        scales = 2.0 ** randn((len(slots), dim // GROUP), torch.float32, device, seed=35).round().clamp(-1, 1)
        write_keys(*quantise((keys.unflatten(-1, (-1, GROUP)) * scales.unsqueeze(-1)).flatten(-2)), cache, slots)
        codes = torch.cat([part.flatten(1) for part in quantise(query)], dim=1)
        return Batch(codes, weights, cache, placed.metadata)
    write_keys(keys.to(torch.float8_e4m3fn), scales, cache, slots)
    return Batch(query.to(torch.float8_e4m3fn), weights, cache, placed.metadata)


def _slots(table: Tensor, count: int, size: int) -> Tensor:
    """Of the first keys of a sequence."""
    number = torch.arange(count, device=table.device)
    return table[number // size].long() * size + number % size
