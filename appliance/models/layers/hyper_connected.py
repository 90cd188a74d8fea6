"""The decoder whose residual is of several streams, mixed around every sub-layer (mHC, arXiv 2512.24880)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from appliance.checkpoint import drafting
from appliance.checkpoint.families import deepseek_v4 as checkpoint
from appliance.checkpoint.families.decoder import layer_prefix
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch, LayerCache
from appliance.models.layers.compressed_attention import CompressedAttention
from appliance.models.layers.decoder import Decoder
from appliance.models.layers.linear import linear_of
from appliance.models.layers.moe import SparseMoE
from appliance.models.layers.norm import RMSNorm
from kernels.mhc_pre.reference import Connections
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies


class HyperConnectedLayer:
    """Attention, then experts: what goes into each is a sum of all streams, normed, and its result goes into all."""

    def __init__(self, context: BuildContext, layer: int, cos_sin: Tensor) -> None:
        at, hidden = layer_prefix(context.config, layer), context.config.hidden_size
        self.attention_connection = Connection(context, f"{at}hc_attn")
        self.attention_norm = RMSNorm(context, f"{at}attn_norm", hidden)
        self.mixer = CompressedAttention(context, layer, cos_sin)
        self.experts_connection = Connection(context, f"{at}hc_ffn")
        self.experts_norm = RMSNorm(context, f"{at}ffn_norm", hidden)
        self.experts = SparseMoE(context, layer)
        self._group = context.group

    def __call__(self, streams: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """[T, streams, hidden] -> the same."""
        streams = self.attention_connection(
            streams, lambda x: self._group.sum(self.mixer(self.attention_norm(x), batch, cache))
        )
        return self.experts_connection(
            streams, lambda x: self._group.sum(self.experts(self.experts_norm(x), batch.token_ids))
        )

    def prepare(self) -> None:
        self.mixer.prepare()
        self.experts.prepare()

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.attention_connection.destinations()
        yield from self.attention_norm.destinations()
        yield from self.mixer.destinations()
        yield from self.experts_connection.destinations()
        yield from self.experts_norm.destinations()
        yield from self.experts.destinations()


class Connection:
    """Of the streams to one sub-layer and back."""

    def __init__(self, context: BuildContext, name: str) -> None:
        config, found = context.config, context.config.connections
        assert found is not None
        mixed = (2 + found.streams) * found.streams
        self.weight = context.empty(mixed, found.streams * config.hidden_size, dtype=torch.float32)
        self.scale = context.empty(3, dtype=torch.float32)
        self.base = context.empty(mixed, dtype=torch.float32)
        self._connections = Connections(found.eps, config.rms_norm_eps, found.iterations)
        self._name, self._kernels = name, context.kernels

    def __call__(self, streams: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """[T, streams, hidden] -> the same."""
        x, post, mix = self._kernels.mhc_pre(streams, self.weight, self.scale, self.base, self._connections)
        out: Tensor = self._kernels.mhc_post(sublayer(x), streams, post, mix)
        return out

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield f"{self._name}_fn", self.weight
        yield f"{self._name}_scale", self.scale
        yield f"{self._name}_base", self.base


class StreamsEnd:
    """All streams become one weighted sum, before a last norm."""

    def __init__(self, context: BuildContext, prefix: str, norm: RMSNorm) -> None:
        config, streams = context.config, checkpoint.streams_of(context.config)
        self.weight = context.empty(streams, streams * config.hidden_size, dtype=torch.float32)
        self.scale = context.empty(1, dtype=torch.float32)
        self.base = context.empty(streams, dtype=torch.float32)
        assert config.connections is not None
        self._eps, self._norm_eps = config.connections.eps, config.rms_norm_eps
        self._prefix, self._norm, self._kernels = prefix, norm, context.kernels

    def __call__(self, streams: Tensor) -> Tensor:
        """[T, streams, hidden] -> [T, hidden]."""
        return self._norm(
            self._kernels.mhc_head(streams, self.weight, self.scale, self.base, self._eps, self._norm_eps)
        )

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield f"{self._prefix}hc_head_fn", self.weight
        yield f"{self._prefix}hc_head_scale", self.scale
        yield f"{self._prefix}hc_head_base", self.base


class HyperConnectedHead:
    """A Drafter, as the last layer of a config that `drafts`: its streams begin as the model's, projected, with the
    embedding of the next token, projected too, in each. `embedded` [T] -> [T, hidden] is the decoder's own."""

    def __init__(self, context: BuildContext, cos_sin: Tensor, embedded: Callable[[Tensor], Tensor]) -> None:
        config, head = context.config, drafting.head_of(context.config)
        self.embedding_norm, self.hidden_norm, self.norm = (
            RMSNorm(context, name, config.hidden_size) for name in (head.embedding_norm, head.hidden_norm, head.norm)
        )
        self.from_embedding, self.from_stream = (
            linear_of(context, part) for part in checkpoint.head_projections(config)
        )
        self.layer = HyperConnectedLayer(context, config.num_decoder_layers, cos_sin)
        self.end = StreamsEnd(context, head.prefix, self.norm)
        self._embedded, self._streams = embedded, checkpoint.streams_of(config)

    def forward(self, batch: ForwardBatch, hidden: Tensor, cache: LayerCache) -> Tensor:
        """[T, hidden], of the streams [T, streams, hidden] behind the model's last layer."""
        streams = self.from_stream(self.hidden_norm(hidden.flatten(0, 1))).view(hidden.shape)
        streams += self.from_embedding(self.embedding_norm(self._embedded(batch.token_ids))).unsqueeze(1)
        return self.end(self.layer(streams, batch, cache))

    def room(self, tokens: int) -> Tensor:
        return self.norm.weight.new_empty(tokens, self._streams, len(self.norm.weight))

    def prepare(self) -> None:
        for part in (self.from_embedding, self.from_stream, self.layer):
            part.prepare()

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        norms = self.embedding_norm, self.hidden_norm, self.norm
        for part in (*norms, self.from_embedding, self.from_stream, self.layer, self.end):
            yield from part.destinations()

    def optional_destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.layer.mixer.optional_destinations()


class HyperConnectedDecoder(Decoder):
    """All streams begin as the embedding, and end as one weighted sum before the last norm."""

    embedding_name, norm_name, head_name = checkpoint.EMBEDDING, checkpoint.NORM, checkpoint.HEAD
    layers: Sequence[HyperConnectedLayer]

    def __init__(self, context: BuildContext) -> None:
        super().__init__(context)
        self._streams = checkpoint.streams_of(context.config)
        self.end = StreamsEnd(context, "", self.norm)

    def build_layers(self, context: BuildContext) -> tuple[Sequence[HyperConnectedLayer], HyperConnectedHead | None]:
        """Layers with compressed entries turn by other angles than those without. The tables are in float32, as
        DeepSeek's own code has them."""
        config = context.config
        tables: dict[bool, Tensor] = {}
        of_layers = []
        for layer in range(config.num_hidden_layers):
            mixer = checkpoint.mixer_of(config, layer)
            if (compresses := mixer.ratio > 0) not in tables:
                inverse, factor = inverse_frequencies(mixer.rope_dim, mixer.rope_theta, mixer.rope_scaling)
                table = cos_sin_table(inverse, factor, context.max_model_len, torch.float32)
                tables[compresses] = table.to(context.device)
            of_layers.append(tables[compresses])
        layers = [HyperConnectedLayer(context, layer, of_layers[layer]) for layer in range(config.num_decoder_layers)]
        return layers, HyperConnectedHead(context, of_layers[-1], self._embedded) if config.drafts else None

    def destinations(self) -> Mapping[str, Tensor]:
        return {**super().destinations(), **dict(self.end.destinations())}

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        streams = self._embedded(batch.token_ids).unsqueeze(1).repeat(1, self._streams, 1)
        for layer, cache in zip(self.layers, caches[: len(self.layers)], strict=True):
            streams = layer(streams, batch, cache)
        if self.drafter is not None:
            batch.carried.for_head = streams
        return self.end(streams)
