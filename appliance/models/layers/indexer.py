"""The indexer of sparse attention: which of its context each query attends to (DeepSeek-AI, 2025, "DeepSeek-V3.2")."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from appliance.checkpoint.families import indexer as checkpoint
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch, LatentCache
from appliance.models.layers.linear import linear_of
from kernels.index_cache.norm import KeyNorm
from kernels.indexer.chosen import Chosen
from kernels.paged_attention.metadata import AttentionMetadata


class Indexer:
    """Queries of several heads, made from the latent of attention's own, score the one key of each token."""

    def __init__(self, context: BuildContext, layer: int, cos_sin: Tensor) -> None:
        config = context.config
        self._indexing, self._at = checkpoint.indexing_of(config, layer), checkpoint.prefix(config, layer)
        query, key = checkpoint.query(config, layer), checkpoint.key(config, layer)
        self.query = linear_of(context, query)
        self.key = linear_of(context, key)
        weight, bias = (context.empty(key.rows, dtype=torch.float32) for _ in range(2))
        self.norm = KeyNorm(weight, bias, checkpoint.NORM_EPS)
        self.weights = context.empty(self._indexing.num_heads, config.hidden_size, dtype=torch.float32)
        self._cos_sin = cos_sin
        self._kernels = context.kernels
        self._weigh = context.linear_for(self.weights).call

    def __call__(self, x: Tensor, query_latent: Tensor, batch: ForwardBatch, cache: LatentCache) -> Chosen | None:
        """Write the keys of all tokens, `x` [T, hidden], and choose for the first queries; None where there is nothing
        to choose."""
        kernels, indexing, metadata = self._kernels, self._indexing, batch.attention
        rows = choosing(metadata, indexing.top_k)
        query = query_latent.new_empty(0, self.query.weight.values.shape[0])
        if rows:
            query = self.query(query_latent[:rows])
        weights = self._weigh(x[:rows].float(), self.weights)
        query, weights = kernels.index_cache(
            query.unflatten(-1, (indexing.num_heads, -1)), self.key(x), weights, batch.positions, self._cos_sin,
            self.norm, cache.index, metadata.slot_mapping, indexing.interleaved,
        )  # fmt: skip
        if not rows:
            return None
        of_rows = metadata if rows == len(x) else metadata.decodes()
        chosen: Chosen = kernels.indexer(query, weights, cache.index, of_rows, indexing.top_k)
        return chosen

    def prepare(self) -> None:
        self.query.prepare()
        self.key.prepare()

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.query.destinations()
        yield from self.key.destinations()
        yield f"{self._at}{checkpoint.KEY_NORM}.weight", self.norm.weight
        yield f"{self._at}{checkpoint.KEY_NORM}.bias", self.norm.bias
        yield self._at + checkpoint.WEIGHTS, self.weights


def choosing(metadata: AttentionMetadata, top_k: int) -> int:
    """For how many of a batch's tokens, the first, there is a choice: those that decode, as a CUDA graph does not know
    their contexts; and all where a prefill sees more than `top_k`. Attention over all tokens is faster for others."""
    decodes = metadata.num_decodes
    if all(length <= top_k for length in metadata.context_lens[decodes:]):
        return decodes
    return len(metadata.slot_mapping)
