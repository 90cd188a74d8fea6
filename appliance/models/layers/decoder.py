"""The pre-norm decoder that the dense families share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from appliance.checkpoint.config import SLIDING, ModelConfig
from appliance.models.base import BuildContext
from appliance.models.batch import ForwardBatch, LayerCache
from appliance.models.layers.attention import Attention
from appliance.models.layers.mlp import GatedMLP
from appliance.models.layers.norm import RMSNorm
from kernels.rotary.frequencies import cos_sin_table, inverse_frequencies


class DecoderLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)); the running sum is carried as the residual."""

    def __init__(self, context: BuildContext, cos_sin: Tensor, sliding_window: int | None) -> None:
        self.input_norm = RMSNorm(context, context.config.hidden_size)
        self.attention = Attention(context, cos_sin, sliding_window)
        self.post_attention_norm = RMSNorm(context, context.config.hidden_size)
        self.mlp = GatedMLP(context)

    def __call__(self, x: Tensor, residual: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """`x` [T, hidden] is what the layer before added, `residual` all before it (updated in place)."""
        x = self.attention(self.input_norm(x, residual), batch, cache)
        return self.mlp(self.post_attention_norm(x, residual))

    def destinations(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        yield from self.input_norm.destinations(f"{prefix}input_layernorm")
        yield from self.attention.destinations(f"{prefix}self_attn.")
        yield from self.post_attention_norm.destinations(f"{prefix}post_attention_layernorm")
        yield from self.mlp.destinations(f"{prefix}mlp.")


class DenseDecoder:
    """Embedding, layers, norm, head. A family derives from it and says what is its own."""

    def __init__(self, context: BuildContext) -> None:
        config = context.config
        self._kernels = context.kernels
        rotary_dim = int(config.head_dim * config.partial_rotary_factor)
        inverse, factor = inverse_frequencies(rotary_dim, config.rope_theta, config.rope_scaling)
        cos_sin = cos_sin_table(inverse, factor, context.max_model_len, context.dtype).to(context.device)
        self.embedding = context.empty(config.vocab_size, config.hidden_size)
        self.layers = [
            DecoderLayer(context, cos_sin, _sliding_window(config, index)) for index in range(config.num_hidden_layers)
        ]
        self.norm = RMSNorm(context, config.hidden_size)
        self.tied = config.tie_word_embeddings
        self.head = self.embedding if self.tied else context.empty(config.vocab_size, config.hidden_size)

    def destinations(self) -> Mapping[str, Tensor]:
        found = {"model.embed_tokens.weight": self.embedding}
        for index, layer in enumerate(self.layers):
            found.update(layer.destinations(f"model.layers.{index}."))
        found.update(self.norm.destinations("model.norm"))
        if not self.tied:
            found["lm_head.weight"] = self.head
        return found

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        residual = self._kernels.embedding(batch.token_ids, self.embedding)
        x = residual.new_zeros(residual.shape)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, residual, batch, cache)
        x = self.norm(x, residual)
        logits: Tensor = self._kernels.linear(x[batch.logits_rows], self.head)
        return logits.float()


def _sliding_window(config: ModelConfig, layer: int) -> int | None:
    """How many tokens layer `layer` sees; None for all of them."""
    if config.layer_types is None or config.layer_types[layer] != SLIDING:
        return None
    return config.sliding_window
