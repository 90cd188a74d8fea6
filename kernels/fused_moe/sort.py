"""Sorting pairs of a token and an expert by expert, on the GPU alone: a counting sort, stable and without atomics."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.fused_moe import variants
from kernels.fused_moe.by_expert import Sorted
from kernels.launch import cdiv, launch

_count = functools.cache(variants.count)
_place = functools.cache(variants.place)
_PIECE = tl.constexpr(8192)  # comparisons at a time


def sort_by_expert(expert_ids: Tensor, num_experts: int, block_m: int) -> Sorted:
    """`expert_ids` [T, k] int32, contiguous. No size depends on the ids, so that a CUDA graph can hold it."""
    pairs = expert_ids.numel()
    order, blocks = by_expert = room(pairs, num_experts, block_m, expert_ids.device)
    block, chunks = variants.block_of(num_experts), cdiv(pairs, variants.CHUNK)
    counts = order
    if counted := pairs > variants.COUNTED_FROM:
        counts = torch.empty(chunks, block, dtype=torch.int32, device=expert_ids.device)
        launch(count_kernel, _count(block), (chunks,), expert_ids, counts, pairs)
    launch(place_kernel, _place(block, counted), (chunks,), expert_ids, counts, order, blocks, pairs, block_m)
    return by_expert


def room(pairs: int, num_experts: int, block_m: int, device: torch.device) -> Sorted:
    """For what sorting writes."""
    most = variants.most_blocks(pairs, num_experts, block_m)
    order = torch.empty(pairs, dtype=torch.int32, device=device)
    return Sorted(order, torch.empty(1 + most, 4, dtype=torch.int32, device=device))


@triton.jit(do_not_specialize=["pairs"])
def count_kernel(
    ids_ptr,  # [pairs]
    counts_ptr,  # [chunks, BLOCK]
    pairs,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """How many pairs of each chunk go to each expert."""
    wait_for_previous()
    first = tl.program_id(0) * CHUNK
    counts = _counted(ids_ptr, first, tl.minimum(first + CHUNK, pairs), BLOCK)
    tl.store(counts_ptr + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK), counts)


@triton.jit(do_not_specialize=["pairs", "block_m"])
def place_kernel(
    ids_ptr,  # [pairs]
    counts_ptr,  # [chunks, BLOCK] where COUNTED, else anything
    order_ptr,  # [pairs]
    blocks_ptr,  # [1 + most, 4]
    pairs,
    block_m,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """Writes the pairs of a chunk to their places, and the blocks that begin with one of them."""
    wait_for_previous()
    chunk = tl.program_id(0)
    first = chunk * CHUNK
    if COUNTED:
        before, after = _summed(counts_ptr, 0, chunk, BLOCK), _summed(counts_ptr, chunk, tl.cdiv(pairs, CHUNK), BLOCK)
    else:
        before, after = _counted(ids_ptr, 0, first, BLOCK), _counted(ids_ptr, first, pairs, BLOCK)
    total = before + after  # [BLOCK], of each expert
    blocks = tl.cdiv(total, block_m)
    end = tl.cumsum(total, axis=0)
    first_block = tl.cumsum(blocks, axis=0) - blocks

    pair = first + tl.arange(0, CHUNK)
    inside = pair < pairs
    ids = tl.load(ids_ptr + pair, mask=inside, other=0)
    rank = tl.gather(before, ids, axis=0) + _earlier_equals(ids_ptr, ids, first, pairs, CHUNK)
    ends = tl.gather(end, ids, axis=0)
    place = ends - tl.gather(total, ids, axis=0) + rank
    tl.store(order_ptr + place, pair, mask=inside)

    opens = inside & (rank % block_m == 0)
    entry = blocks_ptr + 4 * (1 + tl.gather(first_block, ids, axis=0) + rank // block_m)
    tl.store(entry, ids, mask=opens)
    tl.store(entry + 1, place, mask=opens)
    tl.store(entry + 2, tl.minimum(place + block_m, ends), mask=opens)
    if chunk == 0:
        tl.store(blocks_ptr, tl.sum(blocks, axis=0))


@triton.jit
def _counted(ids_ptr, first, end, BLOCK: tl.constexpr):
    """How many of the pairs from `first` to `end` go to each expert: [BLOCK]."""
    PIECE: tl.constexpr = _PIECE // BLOCK
    expert = tl.arange(0, BLOCK)[None, :]
    hits = tl.zeros([PIECE, BLOCK], tl.int32)
    for start in range(first, end, PIECE):
        pair = start + tl.arange(0, PIECE)
        ids = tl.load(ids_ptr + pair, mask=pair < end, other=-1)
        hits += (ids[:, None] == expert).to(tl.int32)
    return tl.sum(hits, axis=0)


@triton.jit
def _summed(counts_ptr, first, end, BLOCK: tl.constexpr):
    """The counts of the chunks from `first` to `end` together: [BLOCK]."""
    PIECE: tl.constexpr = _PIECE // BLOCK
    total = tl.zeros([PIECE, BLOCK], tl.int32)
    for start in range(first, end, PIECE):
        chunk = (start + tl.arange(0, PIECE))[:, None]
        total += tl.load(counts_ptr + chunk.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :], mask=chunk < end,
                         other=0)  # fmt: skip
    return tl.sum(total, axis=0)


@triton.jit
def _earlier_equals(ids_ptr, ids, first, pairs, CHUNK: tl.constexpr):
    """For each pair of a chunk, how many before it in the chunk go to the same expert: [CHUNK]."""
    PIECE: tl.constexpr = _PIECE // CHUNK
    place = tl.arange(0, CHUNK)[:, None]
    hits = tl.zeros([CHUNK, PIECE], tl.int32)
    for start in range(0, tl.minimum(pairs - first, CHUNK), PIECE):
        other = start + tl.arange(0, PIECE)
        other_ids = tl.load(ids_ptr + first + other, mask=first + other < pairs, other=-1)
        hits += ((other_ids[None, :] == ids[:, None]) & (other[None, :] < place)).to(tl.int32)
    return tl.sum(hits, axis=1)
