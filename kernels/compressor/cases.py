"""Calls that launch every variant of the compressor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.cases import Case, randn
from kernels.compressed_attention.cases import share_first
from kernels.compressor import variants
from kernels.compressor.reference import Compression
from kernels.compressor.variants import Form
from kernels.index_cache.cases import TOLERANCE, TOLERANCE_OF_4_BITS
from kernels.index_cache.reference import numbers
from kernels.index_cache.reference import pages as key_pages
from kernels.index_cache.variants import DIM as KEY_DIM
from kernels.indexer import key_bytes
from kernels.packed_entries import entry_bytes, page_bytes
from kernels.packed_entries.reference import read_entries
from kernels.packed_entries.variants import DIM, ROPE
from kernels.paged_attention.cases import place
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies
from kernels.selection import Context

BLOCK = 256


class Shape(NamedTuple):
    """Tokens of each sequence, new and in all; sequences that decode come first."""

    queries: tuple[int, ...]
    contexts: tuple[int, ...]


# Decodes that complete an entry and that do not, a chunk within an entry, and one that begins in the middle of one.
SHAPES = {4: Shape((1, 1, 1, 1, 2, 11), (4, 7, 8, 300, 2, 21)), 128: Shape((1, 1, 3, 40), (128, 200, 5, 290))}
# A decode and its drafts, of which the second completes an entry, beside another and a prefill.
CHAINS = {4: Shape((1, 1, 1, 1, 5), (6, 7, 8, 4, 21)), 128: Shape((1, 1, 1, 1, 5), (126, 127, 128, 7, 130))}
DRAFTS = 2


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for dtype in variants.DTYPES if model is None else (model.dtype,):
        for form in variants.forms(model):
            for shape, drafts in ((SHAPES[form.ratio], 0), (CHAINS[form.ratio], DRAFTS)):
                yield _case(form, shape, drafts, getattr(torch, dtype))


def _case(form: Form, shape: Shape, drafts: int, dtype: torch.dtype) -> Case:
    name = f"{form} {drafts} drafts {dtype}"
    tolerance = TOLERANCE_OF_4_BITS if form.mxfp4 else TOLERANCE
    return Case(name, lambda compressor, device: _run(compressor, form, shape, drafts, dtype, device), tolerance)


def _run(
    compressor: Callable[..., Any], form: Form, shape: Shape, drafts: int, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """The tails, and all entries or keys that were written, as they are read."""
    ratio, (queries, contexts) = form.ratio, shape
    dim = KEY_DIM if form.keys else DIM
    width, kept = dim * (1 + form.overlap), ratio * (1 + form.overlap) + drafts
    placed = place(queries, contexts, BLOCK, device)
    size = BLOCK // ratio
    each = key_bytes(dim, form.mxfp4) if form.keys else entry_bytes(dim, ROPE)
    pages = torch.zeros((placed.num_blocks, page_bytes(size, each)), dtype=torch.uint8, device=device)
    pages = pages[:, : size * each]
    states = len(queries) + 2
    tail = randn((states, kept * 2 * width + 64), torch.float32, device, seed=1)
    tail = tail[:, : kept * 2 * width].unflatten(1, (kept, 2 * width))
    rows = torch.randperm(states, generator=torch.Generator().manual_seed(3))[: len(queries)].to(device)
    share_first(rows, placed.metadata, drafts)
    compression = Compression(
        ratio,
        form.overlap,
        randn((ratio, width), torch.float32, device, seed=2),
        1 + randn((dim,), dtype, device, seed=4) / 8,
        1e-6,
        form.keys,
        form.mxfp4,
    )
    table = cos_sin_table(*inverse_frequencies(ROPE, 10000.0), max(contexts), torch.float32).to(device)
    positions = torch.cat([torch.arange(c - q, c) for q, c in zip(queries, contexts, strict=True)]).to(device)
    projected = randn((sum(queries), 2 * width + 68), torch.float32, device, seed=5)[:, : 2 * width]
    compressor(projected, compression, positions, table, tail, rows, pages, placed.metadata, dtype)
    if form.keys:
        return [tail, numbers(*key_pages(pages, dim, form.mxfp4))]
    slots = torch.arange(placed.num_blocks * size, device=device)
    return [tail, read_entries(pages, slots, dim, ROPE, torch.float32)]
