"""DeepSeek-V4's attention: one entry a token for all heads, the last ones as they are, all of them compressed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from appliance.checkpoint.families import deepseek_v4 as checkpoint
from appliance.checkpoint.model_config import Indexing
from appliance.models.base import BuildContext
from appliance.models.batch import CompressedCache, ForwardBatch, LayerCache
from appliance.models.layers.linear import Linear, linear_of
from appliance.models.layers.norm import NormWeight, RMSNorm
from appliance.models.layers.weight import Weight
from kernels.compressed_attention.reference import Entries
from kernels.compressor.reference import Compression
from kernels.indexer.chosen import Chosen


class CompressedAttention:
    """Over a window, and where the layer has a compressor over its entries: all of them (HCA), or those that an indexer
    chose (CSA)."""

    def __init__(self, context: BuildContext, layer: int, cos_sin: Tensor) -> None:
        config, self._mixer = context.config, checkpoint.mixer_of(context.config, layer)
        mixer, at = self._mixer, checkpoint.prefix(config, layer)
        self._heads, self._dim, self._eps = config.num_attention_heads, config.head_dim, config.rms_norm_eps
        self.from_hidden = linear_of(context, *checkpoint.from_hidden(config, layer))
        self.query_norm = RMSNorm(context, f"{at}q_norm", mixer.query_rank)
        self.query_from_latent = linear_of(context, checkpoint.query_from_latent(config, layer))
        self.entry_norm = NormWeight(context, f"{at}kv_norm", config.head_dim)
        self.sinks = context.empty(config.num_attention_heads, dtype=torch.float32)
        self._grouped = checkpoint.grouped(config, layer)
        self.grouped = Weight(context, self._grouped.name, self._grouped.rows, self._grouped.columns)
        self._multiply_groups = (
            context.kernels.grouped_linear
            if self.grouped.scale is None
            else partial(
                context.kernels.at("fp8_linear", mixer.num_groups, mixer.group_rank, self._grouped.columns).call,
                weight_scale=self.grouped.scale, groups=mixer.num_groups,
            )
        )  # fmt: skip
        self.out = linear_of(context, checkpoint.output(config, layer))
        self.compressor = self.indexer = None
        if mixer.ratio:
            # One product for all that makes entries of the hidden state: entries, keys and the weights of heads.
            self._widths = mixer.projected(config.head_dim)
            self._projection = context.empty(sum(self._widths), config.hidden_size)
            own, *of_indexer = self._projection.split(self._widths)
            self._project = context.float32_linear_for(self._projection)
            self.compressor = Compressor(context, layer, f"{at}compressor.", config.head_dim, own)
            if mixer.indexing is not None:
                self.indexer = CompressedIndexer(context, layer, mixer.indexing, cos_sin, *of_indexer)
        self._at, self._cos_sin, self._kernels = at, cos_sin, context.kernels
        seen: tuple[int, ...] = ()
        if mixer.ratio:
            seen = (mixer.ratio,) if mixer.indexing is None else (mixer.indexing.top_k, mixer.ratio)
        self._attend = context.kernels.at("compressed_attention", self._heads, self._dim, mixer.window, *seen).call

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        assert isinstance(cache, CompressedCache)
        kernels, mixer = self._kernels, self._mixer
        latent, entry = self.from_hidden(x).split((mixer.query_rank, self._dim), dim=-1)
        latent = self.query_norm(latent)
        compressed = None
        if self.compressor is not None:
            own, *of_indexer = self._project(x).split(self._widths, dim=-1)
            self.compressor(own, batch, cache.tails[0], cache.pages[0], self._cos_sin)
            chosen = None if self.indexer is None else self.indexer(of_indexer, latent, batch, cache)
            compressed = Entries(cache.pages[0], mixer.ratio, chosen)
        query = self.query_from_latent(latent).unflatten(-1, (self._heads, -1))
        query, entry = kernels.window_entries(
            query, entry, batch.positions, self._cos_sin, self.entry_norm.weight, self._eps
        )
        mixed = self._attend(
            query, entry, cache.window, batch.slots, compressed, self.sinks, batch.positions, self._cos_sin,
            batch.attention, mixer.window,
        )  # fmt: skip
        return self.out(self._multiply_groups(mixed.flatten(1), self.grouped.values))

    def prepare(self) -> None:
        for product in self._products():
            product.prepare()
        if self.indexer is not None:
            self.indexer.prepare()

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        for product in self._products():
            yield from product.destinations()
        yield from self.grouped.destinations(self._grouped.name, 0, self._grouped.rows)
        yield from self.query_norm.destinations()
        yield from self.entry_norm.destinations()
        yield f"{self._at}attn_sink", self.sinks
        if self.compressor is not None:
            yield from self.compressor.destinations()
        if self.indexer is not None:
            yield from self.indexer.destinations()

    def optional_destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield from ()

    def _products(self) -> Iterator[Linear]:
        """All that are computed as such: the grouped one has an op of its own."""
        yield self.from_hidden
        yield self.query_from_latent
        yield self.out


class Compressor:
    """Makes an entry, or with `indexing` a key of that, of every few tokens, from what `projection`
    [2 * width, hidden] gives of these."""

    def __init__(
        self,
        context: BuildContext,
        layer: int,
        at: str,
        dim: int,
        projection: Tensor,
        *,
        indexing: Indexing | None = None,
    ) -> None:
        config, mixer = context.config, checkpoint.mixer_of(context.config, layer)
        width = mixer.width(dim)
        self.projection = projection  # values, then gates
        self.norm = NormWeight(context, f"{at}norm", dim)
        base = context.empty(mixer.ratio, width, dtype=torch.float32)
        self._compression = Compression(
            mixer.ratio, mixer.overlap, base, self.norm.weight, config.rms_norm_eps,
            indexing is not None, indexing is not None and indexing.mxfp4,
        )  # fmt: skip
        self._at, self._width, self._dtype = at, width, context.dtype
        self._compress = context.kernels.at("compressor", dim, mixer.ratio).call

    def __call__(self, projected: Tensor, batch: ForwardBatch, tail: Tensor, pages: Tensor, cos_sin: Tensor) -> None:
        """`projected` [T, 2 * width] in float32."""
        self._compress(
            projected,
            self._compression,
            batch.positions,
            cos_sin,
            tail,
            batch.slots,
            pages,
            batch.attention,
            self._dtype,
        )

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield f"{self._at}wkv.weight", self.projection[: self._width]
        yield f"{self._at}wgate.weight", self.projection[self._width :]
        yield f"{self._at}ape", self._compression.base
        yield from self.norm.destinations()


class CompressedIndexer:
    """Chooses among compressed entries by keys that a compressor of its own makes, of what `projection`
    [2 * width, hidden] gives, and by what `weights` [heads, hidden] do."""

    def __init__(
        self,
        context: BuildContext,
        layer: int,
        indexing: Indexing,
        cos_sin: Tensor,
        projection: Tensor,
        weights: Tensor,
    ) -> None:
        config, self._at = context.config, f"{checkpoint.prefix(context.config, layer)}indexer."
        self._indexing, self._ratio = indexing, checkpoint.mixer_of(config, layer).ratio
        self.query = linear_of(context, checkpoint.index_query(config, layer))
        self.weights = weights
        at = f"{self._at}compressor."
        self.compressor = Compressor(context, layer, at, indexing.head_dim, projection, indexing=indexing)
        self._cos_sin, self._kernels = cos_sin, context.kernels

    def __call__(
        self, made: Sequence[Tensor], query_latent: Tensor, batch: ForwardBatch, cache: CompressedCache
    ) -> Chosen:
        """`made` is what its two weights give of the hidden state, in float32."""
        projected, weights = made
        kernels, pages = self._kernels, cache.pages[1]
        self.compressor(projected, batch, cache.tails[1], pages, self._cos_sin)
        query = self.query(query_latent).unflatten(-1, (self._indexing.num_heads, -1))
        query, weights = kernels.index_query(
            query, weights, batch.positions, self._cos_sin, pages, self._indexing.mxfp4
        )
        chosen: Chosen = kernels.indexer(query, weights, pages, batch.attention, self._indexing.top_k, self._ratio)
        return chosen

    def prepare(self) -> None:
        self.query.prepare()

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.query.destinations()
        yield f"{self._at}weights_proj.weight", self.weights
        yield from self.compressor.destinations()
