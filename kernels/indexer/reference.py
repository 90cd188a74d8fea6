"""An indexer's scores and choice in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.index_cache.reference import key_rows, numbers, pages
from kernels.indexer import head_dim_of, queries_together
from kernels.indexer.chosen import Chosen
from kernels.paged_attention.metadata import AttentionMetadata


def indexer(
    query: Tensor, weights: Tensor, cache: Tensor, metadata: AttentionMetadata, top_k: int, ratio: int = 1
) -> Chosen:
    """For each query the `top_k` tokens of its sequence, up to itself, with the largest sum_h weight_h * max(q_h k, 0),
    in float32; all of them where there are no more. Of tokens with equal sums the first is chosen; NaN is the largest.

    With a `ratio` above 1 keys are of as many tokens each, and a query at position p chooses from (p + 1) // ratio of
    them: none at first.

    Args:
        query: [T, heads, head_dim] and `weights` [T, heads], as `index_cache` returns them; or a token's queries in
            MXFP4, [T, bytes], as a page has keys.
        cache: as of `index_cache`, the new tokens already written; its keys are as the queries are.
        metadata: which rows of `query` and which blocks belong to which sequence.
    """
    mxfp4 = query.dtype == torch.uint8
    dim = head_dim_of(query.shape[1] // weights.shape[1]) if mxfp4 else query.shape[-1]
    slots = torch.full((len(query), top_k), -1, dtype=torch.int32, device=query.device)
    counts = torch.empty(len(query), dtype=torch.int32, device=query.device)
    start = 0
    for seq, (count, tokens) in enumerate(zip(metadata.query_lens, metadata.context_lens, strict=True)):
        blocks, length = metadata.block_tables[seq], tokens // ratio
        visible = (torch.arange(tokens - count, tokens, device=query.device) + 1) // ratio
        counts[start : start + count] = visible.clamp(max=top_k)
        own = _slots(blocks, length, key_rows(cache, dim, mxfp4))
        # That see no more than top_k.
        few = max(min(top_k * ratio + ratio - 1 - (tokens - count), count), 0)
        slots[start : start + few, :length] = torch.where(
            torch.arange(min(top_k, length), device=query.device) < visible[:few, None], own[:top_k], -1
        )
        if few < count:
            keys = _keys(cache, blocks, length, dim, mxfp4)
            together = queries_together(2 * weights.shape[1] * length * 4)
            for first in range(start + few, start + count, together):
                rows = slice(first, min(first + together, start + count))
                some = numbers(*pages(query[rows], dim, mxfp4)) if mxfp4 else query[rows]
                scores = _scores(some, weights[rows], keys, visible[rows.start - start : rows.stop - start])
                slots[rows] = own[_largest(scores, top_k)]
                del scores  # before there are others
        start += count
    return Chosen(slots, counts)


def _scores(query: Tensor, weights: Tensor, keys: Tensor, visible: Tensor) -> Tensor:
    """[N, L], -inf where a query sees no token."""
    products = torch.matmul(query.float(), keys.T).relu_()  # [N, heads, L]
    scores = torch.bmm(weights.unsqueeze(1), products).squeeze(1)
    return scores.masked_fill_(torch.arange(len(keys), device=query.device) >= visible[:, None], -torch.inf)


def _largest(scores: Tensor, count: int) -> Tensor:
    """The places [N, count] of the largest of each row, in their order; of equal ones the first."""
    scores = torch.where(scores.isnan(), torch.inf, scores)
    least = scores.topk(count, dim=-1).values[:, -1:]
    larger, equal = scores > least, scores == least
    missing = count - larger.sum(-1, keepdim=True)
    return (larger | (equal & (equal.cumsum(-1) <= missing))).nonzero()[:, 1].view(-1, count)


def _slots(blocks: Tensor, length: int, block_size: int) -> Tensor:
    """Of each token of a sequence, [L] int32."""
    position = torch.arange(length, device=blocks.device)
    slots: Tensor = blocks[position // block_size] * block_size + position % block_size
    return slots


def _keys(cache: Tensor, blocks: Tensor, length: int, dim: int, mxfp4: bool) -> Tensor:
    """Those of a sequence's tokens, [L, dim] float32."""
    if cache.dtype != torch.uint8:
        return cache.index_select(0, blocks[: -(-length // cache.shape[1])]).flatten(0, 1)[:length].float()
    own = cache.index_select(0, blocks[: -(-length // key_rows(cache, dim, mxfp4))])
    return numbers(*pages(own, dim, mxfp4)).flatten(0, 1)[:length]
