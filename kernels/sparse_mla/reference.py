"""Sparse latent attention in plain torch: copies the chosen latents of some queries together. It serves the CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.indexer.chosen import Chosen
from kernels.sparse_mla import queries_together


def sparse_mla(query: Tensor, cache: Tensor, kv_b: Tensor, chosen: Chosen, scale: float, num_decodes: int) -> Tensor:
    """As `mla_attention` computes it, over the chosen tokens alone, for decodes and prefills of any context.

    Args:
        query: [T, heads, nope + rope], as `latent_cache` leaves it.
        cache: [blocks, block_size, rank + rope], the new tokens already written.
        kv_b: [heads, nope + value, rank].
        chosen: of T queries, at least one token each.
        num_decodes: how many of the queries, the first, are decodes, which a backend may compute in another way.

    Returns:
        [T, heads, value], new, in the dtype of `query`.
    """
    nope = query.shape[-1] - (cache.shape[-1] - kv_b.shape[-1])
    out = query.new_empty((*query.shape[:2], kv_b.shape[1] - nope))
    together = queries_together(chosen.slots.shape[1] * cache.shape[-1] * cache.element_size())
    for first in range(0, len(query), together):
        rows = slice(first, first + together)
        out[rows] = _attend(query[rows], cache, kv_b, chosen.slots[rows, : int(chosen.counts[rows].max())], scale)
    return out


def _attend(query: Tensor, cache: Tensor, kv_b: Tensor, slots: Tensor, scale: float) -> Tensor:
    """Some queries over their `slots` [Q, K], -1 for none."""
    rank, seen = kv_b.shape[-1], slots >= 0
    rope = cache.shape[-1] - rank
    entries = cache.flatten(0, 1).index_select(0, slots.clamp(min=0).flatten()).view(*slots.shape, -1)
    entries.masked_fill_(~seen.unsqueeze(-1), 0)  # what slots of others hold: NaN times a weight of 0 is NaN
    content, key = query.split((query.shape[-1] - rope, rope), dim=-1)
    to_keys, to_values = kv_b.split((content.shape[-1], kv_b.shape[1] - content.shape[-1]), dim=1)
    absorbed = torch.cat(((content.transpose(0, 1) @ to_keys).transpose(0, 1), key), dim=-1)
    # The heads stand where a query's length would, as in `mla_attention`.
    context = entries.unsqueeze(1)
    attended = scaled_dot_product_attention(
        absorbed.unsqueeze(1), context, context, attn_mask=seen[:, None, None, :], scale=scale
    )
    return torch.bmm(attended.squeeze(1)[..., :rank].transpose(0, 1), to_values.transpose(1, 2)).transpose(0, 1)
