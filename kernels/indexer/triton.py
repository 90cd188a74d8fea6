"""An indexer's scores and choice in Triton: the scores of as many queries as the memory limit has room for go to
memory, and the largest of each are found without sorting. A query's choice does not depend on its neighbours."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from kernels.indexer import key_bytes, queries_together, variants
from kernels.indexer.chosen import Chosen
from kernels.indexer.triton_kernels import score_kernel, select_kernel
from kernels.launch import architecture, cdiv, launch
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.variants import Variant

_score = functools.cache(variants.score)
_select = functools.cache(variants.select)


def indexer(
    query: Tensor, weights: Tensor, cache: Tensor, metadata: AttentionMetadata, top_k: int, ratio: int = 1
) -> Chosen:
    """As `reference.indexer`, for a cache of pages, at multiples of 16 bytes and with a power of two of keys each, and
    queries of `variants.HEADS` heads with 128 numbers."""
    assert cache.stride(0) % 16 == 0, f"pages {cache.stride(0)} bytes apart"
    (tokens, heads), mxfp4 = weights.shape, query.dtype == torch.uint8
    score = _score(architecture(), heads, variants.TILE, mxfp4)
    if score.options["CODED"] or mxfp4:
        query, cache = query.view(torch.uint8), cache.view(torch.uint8)
    else:
        cache = cache.view(torch.float8_e4m3fn)
    chosen = Chosen(
        torch.empty((tokens, top_k), dtype=torch.int32, device=query.device),
        torch.empty(tokens, dtype=torch.int32, device=query.device),
    )
    decodes = metadata.num_decodes
    if decodes:
        longest = max(metadata.context_lens[:decodes]) // ratio
        decode = _score(architecture(), heads, variants.DECODE_TILE, mxfp4)
        _choose(query, weights, cache, metadata, chosen, decode, 0, slice(0, decodes), longest, ratio)
    end = decodes
    for seq in range(decodes, len(metadata.query_lens)):
        start, end = end, end + metadata.query_lens[seq]
        _choose(query, weights, cache, metadata, chosen, score, seq, slice(start, end),
                metadata.context_lens[seq] // ratio, ratio)  # fmt: skip
    return chosen


def _choose(
    query: Tensor,
    weights: Tensor,
    cache: Tensor,
    metadata: AttentionMetadata,
    chosen: Chosen,
    variant: Variant,
    seq: int,
    rows: slice,
    longest: int,
    ratio: int,
) -> None:
    """For `rows`: of the sequence `seq`, or of decodes from it on. The last sees `longest` keys."""
    dim, top_k = int(variant.options["DIM"]), chosen.slots.shape[1]
    keys, queries = int(variant.options["KEYS"]), int(variant.options["QUERIES"])
    size = cache.shape[1] // key_bytes(dim, bool(variant.options["MXFP4"]))
    assert size & (size - 1) == 0, f"{size} keys in a page"
    page_shift = size.bit_length() - 1
    starts, lens, tables = metadata.query_start_loc, metadata.seq_lens, metadata.block_tables
    width = max(cdiv(longest, 4), 1) * 4
    together = queries_together(width * 4)
    for first in range(rows.start, rows.stop, together):
        end = min(first + together, rows.stop)
        of_first = first if queries == 1 else seq
        scores = torch.empty((end - first, width), dtype=torch.float32, device=query.device)
        if longest > top_k:
            launch(
                score_kernel, variant, (cdiv(longest, keys), cdiv(end - first, queries)),
                query, weights, cache, cache.view(torch.float32), scores, starts, lens, tables,
                of_first, first, end, width, tables.stride(0), page_shift, cache.stride(0) // 16, top_k, ratio,
            )  # fmt: skip
        launch(
            select_kernel, _select(decodes=queries == 1), (end - first,),
            scores, chosen.slots, chosen.counts, starts, lens, tables,
            of_first, first, width, tables.stride(0), page_shift, top_k, ratio,
        )  # fmt: skip
        del scores  # before there are others
