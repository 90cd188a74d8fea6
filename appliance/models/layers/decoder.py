"""The pre-norm decoder that all families share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from appliance.checkpoint.families.decoder import layer_prefix
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch, LayerCache
from appliance.models.layers.attention import Attention
from appliance.models.layers.mlp import GatedMLP
from appliance.models.layers.moe import SparseMoE
from appliance.models.layers.norm import RMSNorm
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies


class DecoderLayer:
    """x + attention(norm(x)), then x + feed_forward(norm(x)); the running sum is carried as the residual."""

    def __init__(self, context: BuildContext, layer: int, cos_sin: Tensor) -> None:
        config, prefix = context.config, layer_prefix(layer)
        self.input_norm = RMSNorm(context, f"{prefix}input_layernorm", config.hidden_size)
        self.attention = Attention(context, f"{prefix}self_attn.", cos_sin, config.layers[layer].mixer.window)
        self.post_attention_norm = RMSNorm(context, f"{prefix}post_attention_layernorm", config.hidden_size)
        sparse = config.experts is not None and layer in config.experts.layers
        self.feed_forward = SparseMoE(context, layer) if sparse else GatedMLP(context, f"{prefix}mlp.")

    def __call__(self, x: Tensor, residual: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """`x` [T, hidden] is what the layer before added, `residual` all before it (updated in place)."""
        x = self.attention(self.input_norm(x, residual), batch, cache)
        return self.feed_forward(self.post_attention_norm(x, residual))

    def prepare(self) -> None:
        self.attention.prepare()
        if isinstance(self.feed_forward, GatedMLP):
            self.feed_forward.prepare()

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.input_norm.destinations()
        yield from self.attention.destinations()
        yield from self.post_attention_norm.destinations()
        yield from self.feed_forward.destinations()


class Decoder:
    """Embedding, layers, norm, head. A family derives from it and says what is its own."""

    def __init__(self, context: BuildContext) -> None:
        config = context.config
        self._kernels = context.kernels
        inverse, factor = inverse_frequencies(config.rotary_dim, config.rope_theta, config.rope_scaling)
        cos_sin = cos_sin_table(inverse, factor, context.max_model_len, context.dtype).to(context.device)
        self.embedding = context.empty(config.vocab_size, config.hidden_size)
        self.layers = [DecoderLayer(context, layer, cos_sin) for layer in range(config.num_hidden_layers)]
        self.norm = RMSNorm(context, "model.norm", config.hidden_size)
        self.tied = config.tie_word_embeddings
        self.head = self.embedding if self.tied else context.empty(config.vocab_size, config.hidden_size)

    def destinations(self) -> Mapping[str, Tensor]:
        found = {"model.embed_tokens.weight": self.embedding}
        for layer in self.layers:
            found.update(layer.destinations())
        found.update(self.norm.destinations())
        if not self.tied:
            found["lm_head.weight"] = self.head
        return found

    def optional_destinations(self) -> Mapping[str, Tensor]:
        return {name: tensor for layer in self.layers for name, tensor in layer.attention.optional_destinations()}

    def prepare(self) -> None:
        for layer in self.layers:
            layer.prepare()
        self.head = self._kernels.prepare_linear(self.head)

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        residual = self._kernels.embedding(batch.token_ids, self.embedding)
        x = residual.new_zeros(residual.shape)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, residual, batch, cache)
        return self.norm(x, residual)

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        logits: Tensor = self._kernels.linear(hidden, self.head)
        return logits.float() if out is None else out.copy_(logits)
