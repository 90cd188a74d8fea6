"""Sparse latent attention in Triton. Every query is absorbed, as decodes of `mla_attention` are, and reads the latents
that were chosen for it from where they lie, once for a tile of heads. A decode is divided into parts, which are joined
afterwards; a prefill has queries enough."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent_launch import wait_for_previous
from kernels.indexer.chosen import Chosen
from kernels.launch import architecture, cdiv, launch
from kernels.mla_attention import ABSORBED_TOKENS, SCRATCH_BYTES, LatentShape, part_bytes, split
from kernels.mla_attention import variants as dense
from kernels.mla_attention.triton_kernels import attend_latents, load_query, merge_kernel, store_part
from kernels.paged_attention.triton import decode_runs
from kernels.sparse_mla import variants

_LOG2E = tl.constexpr(1.4426950408889634)
_tile = functools.cache(variants.tile_of)
_merge = functools.cache(dense.merge)
_attend = functools.cache(variants.attend)


def sparse_mla(query: Tensor, cache: Tensor, kv_b: Tensor, chosen: Chosen, scale: float, num_decodes: int) -> Tensor:
    """As `reference.sparse_mla`, for bfloat16 and float16 and the shapes `mla_attention.SHAPES`.

    The heads of a token are contiguous in `query`, tokens may be strided, by a multiple of 8; the cache, of the query's
    dtype, and `kv_b` are contiguous; `scale` is positive.
    """
    rank = kv_b.shape[-1]
    rope = cache.shape[-1] - rank
    nope = query.shape[-1] - rope
    shape = LatentShape(rank, nope, rope, kv_b.shape[1] - nope)
    assert query.stride(0) % 8 == 0, f"tokens {query.stride(0)} apart"
    out = query.new_empty((*query.shape[:2], shape.value))
    top_k = chosen.slots.shape[1]
    for begin, end, part in ((0, num_decodes, split(query.shape[1])), (num_decodes, len(query), top_k)):
        for first in range(begin, end, ABSORBED_TOKENS):
            rows = slice(first, min(first + ABSORBED_TOKENS, end))
            of_rows = Chosen(chosen.slots[rows], chosen.counts[rows])
            _absorbed(query[rows], cache, kv_b, shape, of_rows, scale, part, out[rows])
    return out


def _absorbed(
    query: Tensor,
    cache: Tensor,
    kv_b: Tensor,
    shape: LatentShape,
    chosen: Chosen,
    scale: float,
    part: int,
    out: Tensor,
) -> None:
    """In parts of so many chosen tokens."""
    num_queries, num_heads = query.shape[:2]
    rank, nope, top_k = shape.rank, shape.nope, chosen.slots.shape[1]
    dtype = str(query.dtype).removeprefix("torch.")
    tile = _tile(architecture(), num_heads)
    absorbed = torch.bmm(query[..., :nope].transpose(0, 1), kv_b[:, :nope])  # [heads, Q, rank]
    attended = torch.empty_like(absorbed)
    room = SCRATCH_BYTES // part_bytes(num_heads, rank)
    for first, count, parts in decode_runs([top_k] * num_queries, part, room):
        # Of each part: the weighted sum of latents, and the largest score with the sum of weights.
        held = count if parts > 1 else 0
        partial = torch.empty((held, num_heads, parts, rank), dtype=torch.float32, device=query.device)
        weights = torch.empty((held, num_heads, parts, 2), dtype=torch.float32, device=query.device)
        launch(
            attend_kernel, _attend(dtype, shape, tile), (cdiv(num_heads, tile.rows), parts, count),
            query, absorbed, cache, attended, partial, weights, chosen.counts, chosen.slots,
            first, num_queries, num_heads, query.stride(0) // 8, nope // 8, top_k, part, scale,
        )  # fmt: skip
        if parts > 1:
            launch(
                merge_kernel, _merge(dtype, shape), (num_heads, count),
                partial, weights, attended, chosen.counts, first, num_queries, num_heads, parts, part,
            )  # fmt: skip
        del partial, weights  # before there are others
    torch.bmm(attended, kv_b[:, nope:].transpose(1, 2), out=out.transpose(0, 1))


@triton.jit(
    do_not_specialize=["first_query", "num_queries", "heads", "token_stride8", "nope8", "top_k", "split", "scale"],
    do_not_specialize_on_alignment=["counts_ptr", "slots_ptr"],
)
def attend_kernel(
    query_ptr,  # [Q, heads, nope + ROPE], tokens strided
    absorbed_ptr,  # [heads, Q, RANK]
    cache_ptr,  # [slots, RANK + ROPE]
    out_ptr,  # [heads, Q, RANK]
    partial_ptr,  # [queries of this launch, heads, parts, RANK] float32
    weights_ptr,  # [queries of this launch, heads, parts, 2] float32
    counts_ptr,  # [Q]
    slots_ptr,  # [Q, top_k]
    first_query,  # of this launch
    num_queries,  # Q
    heads,
    token_stride8,
    nope8,
    top_k,
    split,  # chosen tokens of a part
    scale,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    wait_for_previous()
    part = tl.program_id(1)
    token = (first_query + tl.program_id(2)).to(tl.int64)
    count = tl.load(counts_ptr + token)
    begin = part * split
    if begin >= count:
        return
    head = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    query, turned = load_query(
        query_ptr, absorbed_ptr, token, num_queries, head, heads, token_stride8, nope8, RANK, ROPE
    )  # fmt: skip
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), dtype=tl.float32)
    total = tl.zeros((ROWS, RANK), dtype=tl.float32)
    factor = scale * _LOG2E
    own_slots_ptr = slots_ptr + token * top_k
    end = tl.minimum(begin + split, count)
    column = begin + tl.arange(0, COLUMNS)
    slot = tl.load(own_slots_ptr + column, mask=column < end, other=0)
    for _ in range(begin, end, COLUMNS):
        seen = column < end
        entry = cache_ptr + slot.to(tl.int64) * (RANK + ROPE)
        # Where the next latents lie, so that nothing waits for it.
        column += COLUMNS
        slot = tl.load(own_slots_ptr + column, mask=column < end, other=0)
        total, highest, weight = attend_latents(
            total, highest, weight, query, turned, entry, seen, factor, RANK, ROPE
        )  # fmt: skip

    store_part(
        total, highest, weight, out_ptr, partial_ptr, weights_ptr, token, num_queries, head, heads, part,
        count <= split, RANK,
    )  # fmt: skip
