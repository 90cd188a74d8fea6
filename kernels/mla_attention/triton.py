"""Latent attention in Triton. Decodes absorb the projection of the latents: queries and results are multiplied by it,
and the context is read as it lies in the cache, once for a tile of heads, as keys and as values. A decode is divided
along its context into parts, which `merge_kernel` joins (flash decoding, Dao et al., 2023). Prefills expand their
contexts, some heads at a time, but for chunks so short that they take fewer operations as so many decodes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear

from kernels.launch import architecture, cdiv, interpreted, launch
from kernels.mla_attention import (
    ABSORBED_TOKENS,
    LONGER_ON_HOPPER,
    PROGRAMS_TOGETHER,
    SCRATCH_BYTES,
    LatentShape,
    absorbs,
    heads_together,
    part_bytes,
    split,
    variants,
)
from kernels.mla_attention.hopper_kernels import hopper_decode_kernel
from kernels.mla_attention.triton_kernels import decode_kernel, gather_kernel, merge_kernel, prefill_kernel
from kernels.paged_attention import GATHERED_TOKENS
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.paged_attention.triton import decode_runs
from kernels.paged_attention.variants import Tile

_tile = functools.cache(variants.decode_tile)
_decode = functools.cache(variants.decode)
_hopper_decode = functools.cache(variants.hopper_decode)
_merge = functools.cache(variants.merge)
_gathering = functools.cache(variants.gather)
_prefill = functools.cache(variants.prefill)


def mla_attention(query: Tensor, cache: Tensor, kv_b: Tensor, metadata: AttentionMetadata, scale: float) -> Tensor:
    """As `reference.mla_attention`, for bfloat16 and float16 and the shapes `SHAPES`.

    The heads of a token are contiguous in `query`, tokens may be strided, by a multiple of 8; the cache, of the query's
    dtype, and `kv_b` are contiguous, the block size is a power of two; `scale` is positive.
    """
    rank = kv_b.shape[-1]
    rope = cache.shape[-1] - rank
    nope = query.shape[-1] - rope
    shape = LatentShape(rank, nope, rope, kv_b.shape[1] - nope)
    assert query.stride(0) % 8 == 0, f"tokens {query.stride(0)} apart"
    assert cache.shape[1] & (cache.shape[1] - 1) == 0, f"blocks of {cache.shape[1]}"
    out = query.new_empty((*query.shape[:2], shape.value))
    decodes = metadata.num_decodes
    for first in range(0, decodes, ABSORBED_TOKENS):
        rows = slice(first, min(first + ABSORBED_TOKENS, decodes))
        lens, tables = metadata.seq_lens[rows], metadata.block_tables[rows]
        _absorbed(query[rows], cache, kv_b, shape, metadata.context_lens[rows], lens, tables, scale, out[rows])
    start = decodes
    for seqs in _prefill_runs(metadata, shape):
        end = start + sum(metadata.query_lens[seqs])
        if absorbs(shape, metadata.query_lens[seqs.start]):
            rows = slice(start, end)
            lens, tables = _as_decodes(metadata, seqs, end - start)
            longest = max(metadata.context_lens[seqs])
            contexts = [longest] * (end - start)
            _absorbed(query[rows], cache, kv_b, shape, contexts, lens, tables, scale, out[rows])
        else:
            _expanded(query, cache, kv_b, shape, metadata, seqs, scale, out)
        start = end
    return out


def _prefill_runs(metadata: AttentionMetadata, shape: LatentShape) -> Iterator[slice]:
    """Neighbouring sequences that prefill in the same way and together stay within what the memory plan counts on:
    `ABSORBED_TOKENS` of queries, or `GATHERED_TOKENS` of contexts, or one sequence however long."""
    first, taken, absorbed = metadata.num_decodes, 0, False
    for seq in range(first, len(metadata.query_lens)):
        as_decodes = absorbs(shape, metadata.query_lens[seq])
        tokens = metadata.query_lens[seq] if as_decodes else metadata.context_lens[seq]
        most = ABSORBED_TOKENS if as_decodes else GATHERED_TOKENS
        if seq > first and (as_decodes != absorbed or taken + tokens > most):
            yield slice(first, seq)
            first, taken = seq, 0
        taken, absorbed = taken + tokens, as_decodes
    if first < len(metadata.query_lens):
        yield slice(first, len(metadata.query_lens))


def _as_decodes(metadata: AttentionMetadata, seqs: slice, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Of each query token of the sequences: the context that it sees, and its blocks."""
    starts, lens = metadata.query_start_loc[seqs.start : seqs.stop + 1], metadata.seq_lens[seqs]
    own = torch.repeat_interleave(starts.diff(), output_size=num_tokens)  # which sequence's
    token = starts[0] + torch.arange(num_tokens, device=lens.device)
    return (lens - starts[1:] + 1)[own].add_(token), metadata.block_tables[seqs][own]


def _absorbed(
    query: Tensor,
    cache: Tensor,
    kv_b: Tensor,
    shape: LatentShape,
    context_lens: list[int],
    seq_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    out: Tensor,
) -> None:
    """One query token for each of `seq_lens`; `context_lens` bound them on the host."""
    num_seqs, num_heads = query.shape[:2]
    rank, nope = shape.rank, shape.nope
    dtype = str(query.dtype).removeprefix("torch.")
    tile = _tile(architecture(), num_heads)
    absorbed = torch.bmm(query[..., :nope].transpose(0, 1), kv_b[:, :nope])  # [heads, S, rank]
    attended = torch.empty_like(absorbed)
    tiles = cdiv(num_heads, tile.rows)
    on_hopper = _divides_warps(tile, cache.shape[1])
    part = split(num_heads) * (LONGER_ON_HOPPER if on_hopper else 1)
    # Where there are enough programs, each takes all parts of a sequence: less is written, and the same comes out.
    together = on_hopper and num_seqs * tiles >= PROGRAMS_TOGETHER
    lens = [part] * num_seqs if together else context_lens
    for first, count, parts in decode_runs(lens, part, SCRATCH_BYTES // part_bytes(num_heads, rank)):
        # Of each part: the weighted sum of latents, and the largest score with the sum of weights.
        partial = torch.empty((count, num_heads, parts, rank), dtype=torch.float32, device=query.device)
        weights = torch.empty((count, num_heads, parts, 2), dtype=torch.float32, device=query.device)
        tensors = query, absorbed, cache, attended, partial, weights, seq_lens, block_tables
        numbers = (
            first, num_seqs, num_heads, query.stride(0) // 8, nope // 8, block_tables.stride(0),
            cache.shape[1].bit_length() - 1, part,
        )  # fmt: skip
        if on_hopper:
            each = cdiv(max(context_lens), part) if together else 1
            launch(
                hopper_decode_kernel, _hopper_decode(dtype), (tiles, parts, count), *tensors, *numbers, each, scale
            )  # fmt: skip
        else:
            launch(decode_kernel, _decode(dtype, shape, tile), (tiles, parts, count), *tensors, *numbers, scale)
        if parts > 1:
            launch(
                merge_kernel, _merge(dtype, shape), (num_heads, count),
                partial, weights, attended, seq_lens, first, num_seqs, num_heads, parts, part,
            )  # fmt: skip
        del partial, weights  # before there are others
    torch.bmm(attended, kv_b[:, nope:].transpose(1, 2), out=out.transpose(0, 1))


def _divides_warps(tile: Tile, block_size: int) -> bool:
    """Whether sm_90's kernel for many heads is launched, which cannot be interpreted."""
    return variants.divides_warps(architecture(), tile) and block_size >= variants.LEAST_BLOCK and not interpreted()


def _expanded(
    query: Tensor,
    cache: Tensor,
    kv_b: Tensor,
    shape: LatentShape,
    metadata: AttentionMetadata,
    seqs: slice,
    scale: float,
    out: Tensor,
) -> None:
    num_heads = query.shape[1]
    dtype = str(query.dtype).removeprefix("torch.")
    lens, tables = metadata.seq_lens[seqs], metadata.block_tables[seqs]
    starts = metadata.query_start_loc[seqs.start : seqs.stop + 1]
    contexts = metadata.context_lens[seqs]
    ends = lens.cumsum(0)
    entries = torch.empty((sum(contexts), cache.shape[-1]), dtype=query.dtype, device=query.device)
    gathering = _gathering(dtype, shape)
    launch(
        gather_kernel, gathering, (cdiv(max(contexts), int(gathering.options["TOKENS"])), len(contexts)),
        cache, entries, lens, ends, tables, tables.stride(0), cache.shape[1].bit_length() - 1,
    )  # fmt: skip
    variant = _prefill(architecture(), dtype, shape)
    tiles = cdiv(max(metadata.query_lens[seqs]), int(variant.options["ROWS"]))
    group = heads_together(entries.shape[0] * kv_b.shape[1] * query.element_size(), num_heads)
    for first in range(0, num_heads, group):
        heads = kv_b[first : first + group]
        expanded = linear(entries[:, : shape.rank], heads.flatten(0, 1))  # [sum of contexts, heads * (nope + value)]
        launch(
            prefill_kernel, variant, (tiles, len(heads), len(contexts)),
            query, expanded, entries, out, starts, lens, ends,
            first, num_heads, len(heads), query.stride(0) // 8, scale,
        )  # fmt: skip
        del expanded  # before there is another
