"""The pre-norm decoder that all families share; its layers differ in how they mix tokens and in what they keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from appliance.checkpoint.families.decoder import EMBEDDING, HEAD, NORM, layer_prefix
from appliance.checkpoint.model_config import Attention as AttentionMixer
from appliance.checkpoint.model_config import GatedDelta
from appliance.checkpoint.model_config import LatentAttention as LatentAttentionMixer
from appliance.models.base import BuildContext, Mixer
from appliance.models.batch import ForwardBatch, LayerCache
from appliance.models.layers.attention import Attention
from appliance.models.layers.gated_delta import GatedDeltaRule
from appliance.models.layers.latent_attention import LatentAttention
from appliance.models.layers.mlp import GatedMLP
from appliance.models.layers.moe import SparseMoE
from appliance.models.layers.norm import RMSNorm
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies


class DecoderLayer:
    """x + attention(norm(x)), then x + feed_forward(norm(x)); the running sum is carried as the residual."""

    def __init__(self, context: BuildContext, layer: int, cos_sin: Tensor) -> None:
        config, prefix = context.config, layer_prefix(context.config, layer)
        self.input_norm = RMSNorm(context, f"{prefix}input_layernorm", config.hidden_size)
        self.mixer = _mixer(context, layer, cos_sin)
        self.post_attention_norm = RMSNorm(context, f"{prefix}post_attention_layernorm", config.hidden_size)
        self.feed_forward: SparseMoE | GatedMLP = (
            SparseMoE(context, layer)
            if config.is_sparse(layer)
            else GatedMLP(context, f"{prefix}mlp.", config.intermediate_size)
        )

        self._group = context.group

    def __call__(self, x: Tensor, residual: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """`x` [T, hidden] is what the layer before added, `residual` all before it (updated in place)."""
        x = self._group.sum(self.mixer(self.input_norm(x, residual), batch, cache))
        return self._group.sum(self.feed_forward(self.post_attention_norm(x, residual)))

    def prepare(self) -> None:
        self.mixer.prepare()
        self.feed_forward.prepare()

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.input_norm.destinations()
        yield from self.mixer.destinations()
        yield from self.post_attention_norm.destinations()
        yield from self.feed_forward.destinations()


def _mixer(context: BuildContext, layer: int, cos_sin: Tensor) -> Mixer:
    mixer, prefix = context.config.layers[layer].mixer, layer_prefix(context.config, layer)
    match mixer:
        case AttentionMixer():
            return Attention(context, f"{prefix}self_attn.", cos_sin, mixer)
        case LatentAttentionMixer():
            return LatentAttention(context, layer, cos_sin)
        case GatedDelta():
            return GatedDeltaRule(context, f"{prefix}linear_attn.", mixer)


class Decoder:
    """Embedding, layers, norm, head, as the config describes them."""

    def __init__(self, context: BuildContext) -> None:
        config = context.config
        self._kernels, self._group = context.kernels, context.group
        inverse, factor = inverse_frequencies(config.rotary_dim, config.rope_theta, config.rope_scaling)
        cos_sin = cos_sin_table(inverse, factor, context.max_model_len, context.dtype).to(context.device)
        self.embedding = context.empty(config.vocab_rows, config.hidden_size)
        self._vocab_size, self._first_token = config.vocab_size, context.group.rank * config.vocab_rows
        self.layers = [DecoderLayer(context, layer, cos_sin) for layer in range(config.num_hidden_layers)]
        self.norm = RMSNorm(context, config.prefix + NORM, config.hidden_size)
        self._prefix = config.prefix
        self.tied = config.tie_word_embeddings
        self.head = self.embedding if self.tied else context.empty(config.vocab_rows, config.hidden_size)

    def destinations(self) -> Mapping[str, Tensor]:
        found = {self._prefix + EMBEDDING: self.embedding}
        for layer in self.layers:
            found.update(layer.destinations())
        found.update(self.norm.destinations())
        if not self.tied:
            found[HEAD] = self.head
        return found

    def optional_destinations(self) -> Mapping[str, Tensor]:
        return {name: tensor for layer in self.layers for name, tensor in layer.mixer.optional_destinations()}

    def prepare(self) -> None:
        for layer in self.layers:
            layer.prepare()
        self.head = self._kernels.prepare_linear(self.head)

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        residual = self._embedded(batch.token_ids)
        x = residual.new_zeros(residual.shape)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, residual, batch, cache)
        return self.norm(x, residual)

    def _embedded(self, token_ids: Tensor) -> Tensor:
        """Of tokens that other ranks have the rows of, this one has zeros."""
        kernels, group = self._kernels, self._group
        if group.count == 1:
            found: Tensor = kernels.embedding(token_ids, self.embedding)
            return found
        rows = token_ids - self._first_token
        absent = (rows < 0) | (rows >= len(self.embedding))
        found = kernels.embedding(rows.masked_fill_(absent, 0), self.embedding)
        return group.sum(found.masked_fill_(absent[:, None], 0))

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        logits = self._group.gather(self._kernels.linear(hidden, self.head))[:, : self._vocab_size]
        return logits.float().contiguous() if out is None else out.copy_(logits)
