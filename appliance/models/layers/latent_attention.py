"""Multi-head latent attention: the cache holds one latent a token, of which every head makes its own key and value.
Where the model has indexers, a query sees only the tokens that one of them chose."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from appliance.checkpoint.families import latent_attention as checkpoint
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch, LatentCache, LayerCache
from appliance.models.layers.indexer import Indexer
from appliance.models.layers.linear import Linear, linear_of
from appliance.models.layers.norm import NormWeight, RMSNorm
from appliance.models.layers.weight import Weight
from kernels.fp8_linear.rounded import Rounded, rows_of


class LatentAttention:
    """MLA (DeepSeek-AI, 2024, "DeepSeek-V2"), with queries from a latent of their own or without."""

    def __init__(self, context: BuildContext, layer: int, cos_sin: Tensor) -> None:
        config = context.config
        mixer, at = checkpoint.mixer_of(config, layer), checkpoint.prefix(config, layer)
        self.num_heads, self._mixer = config.num_attention_heads, mixer
        products = checkpoint.from_hidden(config, layer)
        self.from_hidden = [linear_of(context, *product) for product in products]
        self._widths = [part.rows for product in products for part in product]
        self.query_norm = self.query_from_latent = None
        if mixer.query_rank is not None:
            self.query_norm = RMSNorm(context, at + checkpoint.QUERY_NORM, mixer.query_rank, mixer.norm_eps)
            self.query_from_latent = linear_of(context, checkpoint.query_from_latent(config, layer))
        self.latent_norm = NormWeight(context, at + checkpoint.LATENT_NORM, mixer.kv_rank)
        self._kv_b = checkpoint.keys_and_values(config, layer)
        self.kv_b = Weight(context, self._kv_b.name, self._kv_b.rows, self._kv_b.columns, expanded=True)
        self.out = linear_of(context, checkpoint.output(config, layer))
        self.indexer = Indexer(context, layer, cos_sin) if config.layers[layer].index is not None else None
        self._cos_sin = cos_sin
        self._kernels = context.kernels

    @property
    def in_fp8(self) -> bool:
        return self.from_hidden[0].in_fp8

    def __call__(self, x: Tensor | Rounded, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        assert isinstance(cache, LatentCache)
        query, latent = self._from_hidden(x)
        if self.query_norm is not None and self.query_from_latent is not None:
            query = self.query_norm(query)
            if self.indexer is not None:
                batch.carried.chosen = self.indexer(rows_of(x), query, batch, cache)
            query = self.query_from_latent(query)
        query = query.unflatten(-1, (self.num_heads, -1))  # [T, heads, nope + rope]
        self._kernels.latent_cache(
            query, latent, batch.positions, self._cos_sin, self.latent_norm.weight, self._mixer.norm_eps,
            cache.latent, batch.attention.slot_mapping,
        )  # fmt: skip
        kv_b = self.kv_b.values.unflatten(0, (self.num_heads, -1))  # [heads, nope + value, rank]
        return self.out(self._attend(query, cache.latent, kv_b, batch).flatten(1))

    def _attend(self, query: Tensor, latent: Tensor, kv_b: Tensor, batch: ForwardBatch) -> Tensor:
        """[T, heads, value]: over the tokens that were chosen for the first queries, over all for the others."""
        kernels, scale, attention = self._kernels, self._mixer.scale, batch.attention
        chosen, decodes = batch.carried.chosen, batch.attention.num_decodes
        if chosen is None:
            dense: Tensor = kernels.mla_attention(query, latent, kv_b, attention, scale)
            return dense
        rows = len(chosen.counts)
        sparse: Tensor = kernels.sparse_mla(query[:rows], latent, kv_b, chosen, scale, decodes)
        if rows == len(query):
            return sparse
        dense = kernels.mla_attention(query[rows:], latent, kv_b, attention.prefills(), scale)
        return torch.cat((sparse, dense))

    def _from_hidden(self, x: Tensor | Rounded) -> tuple[Tensor, Tensor]:
        """The query or its latent, and the latent of keys and values."""
        projected = [product(x) for product in self.from_hidden]
        query, latent = projected[0].split(self._widths, dim=-1) if len(projected) == 1 else projected
        return query, latent

    def prepare(self) -> None:
        for product in self._products():
            product.prepare()
        if self.indexer is not None:
            self.indexer.prepare()

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        for product in self._products():
            yield from product.destinations()
        yield from self.kv_b.destinations(self._kv_b.name, 0, self._kv_b.rows)
        if self.query_norm is not None:
            yield from self.query_norm.destinations()
        yield from self.latent_norm.destinations()
        if self.indexer is not None:
            yield from self.indexer.destinations()

    def optional_destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield from ()

    def _products(self) -> Iterator[Linear]:
        """All that are computed as such: attention takes `kv_b` apart."""
        yield from self.from_hidden
        if self.query_from_latent is not None:
            yield self.query_from_latent
        yield self.out
