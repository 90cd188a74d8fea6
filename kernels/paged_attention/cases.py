"""Calls that launch every variant of paged attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.paged_attention import SPLIT, variants
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.selection import Context

_DAMAGE = float("nan")  # in slots that belong to no sequence, so that reads of them show


class Shape(NamedTuple):
    """`queries` and `contexts` are tokens of each sequence, new and in all; sequences that decode come first. The host
    may only know a `bound` of the contexts, as in a CUDA graph."""

    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int = 16
    sliding_window: int | None = None
    sinks: bool = False
    bound: int | None = None


class Batch(NamedTuple):
    query: Tensor  # [T, heads, head_dim], the first heads of a wider tensor, as those of the fused projection are
    key_cache: Tensor
    value_cache: Tensor
    metadata: AttentionMetadata


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        kernel = variant.kernel.partition(":")[2]
        if kernel in ("merge_kernel", "gather_kernel"):
            continue  # launched by what is below
        constants = dict(variant.constants)
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        fp8 = variant.arguments[1] != variant.arguments[0]
        soft_cap = 15.0 if constants["SOFT_CAP"] else None
        head_dim = int(constants["HEAD_DIM"])
        if kernel == "prefill_kernel" and not constants["PAGED"]:
            for fp8 in (False, True):
                for shape in _gathered_shapes(head_dim):
                    yield _case(kernel, shape, dtype, fp8, soft_cap)
            continue
        for shape in _shapes(kernel, int(constants["ROWS"]), head_dim):
            if kernel == "decode_kernel" and not constants["PREFETCHES"]:
                shape = _with_many_programs(shape)
            yield _case(kernel, shape, dtype, fp8, soft_cap)


def _case(kernel: str, shape: Shape, dtype: torch.dtype, fp8: bool, soft_cap: float | None) -> Case:
    name = f"{kernel} {shape} {dtype}{' fp8 cache' if fp8 else ''}{' soft cap' if soft_cap else ''}"
    # With an FP8 cache both sides read the same rounded numbers.
    return Case(name, _call(shape, dtype, fp8, soft_cap), TOLERANCES[dtype])


def _gathered_shapes(dim: int) -> Iterator[Shape]:
    """Few tokens with many heads give enough rows for the pages to be copied together."""
    heads = variants.ROWS_WORTH_GATHERING // 16
    yield Shape((1, 17, 21), (40, 17, 150), heads=heads, kv_heads=1, head_dim=dim)
    yield Shape((40,), (170,), heads=heads, kv_heads=2, head_dim=dim, block_size=32, sliding_window=35, sinks=True)


def _shapes(kernel: str, rows: int, dim: int) -> Iterator[Shape]:
    if kernel == "prefill_kernel":
        yield Shape((3, 37), (3, 61), heads=6, kv_heads=2, head_dim=dim)
        yield Shape((1, 1, 45, 2), (300, 7, 150, 2), heads=4, kv_heads=4, head_dim=dim, sliding_window=33)
        yield Shape((1, 70), (18, 70), heads=5, kv_heads=1, head_dim=dim, block_size=32, sinks=True)
        return
    if rows == variants.DECODE_ROWS[0]:
        yield Shape((1, 1, 1), (1, 257, 530), heads=12, kv_heads=3, head_dim=dim)
        yield Shape((1, 1), (300, 700), heads=16, kv_heads=1, head_dim=dim, sliding_window=270, sinks=True)
    else:  # the larger tile, with a second one that is not full
        yield Shape((1, 1, 1), (1, 257, 530), heads=142, kv_heads=2, head_dim=dim)
        yield Shape((1, 1), (300, 700), heads=125, kv_heads=1, head_dim=dim, sliding_window=270, sinks=True)


def _with_many_programs(shape: Shape) -> Shape:
    """Of which nearly all find nothing to do."""
    parts = variants.FEW_PROGRAMS // (shape.kv_heads * len(shape.contexts)) + 1
    return shape._replace(bound=parts * SPLIT)


def batch(
    shape: Shape, dtype: torch.dtype, cache_dtype: torch.dtype, device: torch.device, *, scatter: bool = True
) -> Batch:
    """Random numbers in random blocks (`scatter`), and NaN in all slots that no sequence owns."""
    placed = place(shape.queries, shape.contexts, shape.block_size, device, scatter=scatter)
    width = (shape.kv_heads, shape.head_dim)
    caches = [placed.cache(width, dtype, seed).to(cache_dtype) for seed in (11, 12)]
    wide = randn((sum(shape.queries), shape.heads + 2 * shape.kv_heads, shape.head_dim), dtype, device, seed=13)
    metadata = placed.metadata
    if shape.bound is not None:
        metadata = replace(metadata, context_lens=[shape.bound] * len(shape.contexts), bounds=True)
    return Batch(wide[:, : shape.heads], caches[0], caches[1], metadata)


class Placed(NamedTuple):
    """Sequences in the blocks of a cache; `slots` are those that some sequence owns."""

    metadata: AttentionMetadata
    slots: Tensor
    num_blocks: int
    block_size: int

    def cache(self, width: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
        """[blocks, block_size, *width]: random numbers, and NaN in slots of no sequence."""
        device = self.slots.device
        cache = torch.full((self.num_blocks * self.block_size, *width), _DAMAGE, dtype=dtype, device=device)
        cache[self.slots] = randn((len(self.slots), *width), dtype, device, seed)
        return cache.view(self.num_blocks, self.block_size, *width)


def place(
    queries: Sequence[int], contexts: Sequence[int], block_size: int, device: torch.device, *, scatter: bool = True
) -> Placed:
    counts = [-(-length // block_size) for length in contexts]
    num_blocks = sum(counts) + 3
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1))
    if not scatter:
        order = torch.arange(num_blocks)
    tables = torch.zeros((len(counts), max(counts)), dtype=torch.int32)
    slots, taken = [], 0
    for i, (count, length, new) in enumerate(zip(counts, contexts, queries, strict=True)):
        tables[i, :count] = order[taken : taken + count]
        taken += count
        position = torch.arange(length)
        own = tables[i, position // block_size].long() * block_size + position % block_size
        slots.append((own, own[length - new :]))
    metadata = AttentionMetadata(
        query_lens=list(queries),
        context_lens=list(contexts),
        num_decodes=_leading_ones(queries),
        query_start_loc=torch.tensor([0, *queries]).cumsum(0).to(torch.int32).to(device),
        seq_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        slot_mapping=torch.cat([new for _, new in slots]).to(device),
    )
    return Placed(metadata, torch.cat([own for own, _ in slots]).to(device), num_blocks, block_size)


def _leading_ones(lens: Sequence[int]) -> int:
    return next((i for i, count in enumerate(lens) if count != 1), len(lens))


def _call(shape: Shape, dtype: torch.dtype, fp8: bool, soft_cap: float | None) -> Callable[..., list[Tensor]]:
    def run(paged_attention: Callable[..., Any], device: torch.device) -> list[Tensor]:
        made = batch(shape, dtype, torch.float8_e4m3fn if fp8 else dtype, device)
        sinks = randn((shape.heads,), torch.float32, device, seed=14) if shape.sinks else None
        scales = (0.5, 2.0) if fp8 else (1.0, 1.0)
        return [paged_attention(*made, shape.head_dim**-0.5, shape.sliding_window, sinks, soft_cap, *scales)]

    return run
