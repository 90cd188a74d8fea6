"""A layer of the pre-norm decoder that all families share; layers differ in how they mix tokens and what they keep."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from appliance.checkpoint.families.decoder import layer_prefix
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


class DecoderLayer:
    """x + attention(norm(x)), then x + feed_forward(norm(x)); the running sum is carried as the residual."""

    def __init__(self, context: BuildContext, layer: int, cos_sin: Tensor) -> None:
        config, prefix = context.config, layer_prefix(context.config, layer)
        self.mixer = _mixer(context, layer, cos_sin)
        self.feed_forward: SparseMoE | GatedMLP = (
            SparseMoE(context, layer)
            if config.is_sparse(layer)
            else GatedMLP(context, f"{prefix}mlp.", config.intermediate_size)
        )
        self.input_norm, self.post_attention_norm = (
            RMSNorm(context, f"{prefix}{name}_layernorm", config.hidden_size, rounds=block.in_fp8)
            for name, block in (("input", self.mixer), ("post_attention", self.feed_forward))
        )
        self._group = context.group

    def __call__(self, x: Tensor, residual: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """`x` [T, hidden] is what the layer before added, `residual` all before it (updated in place)."""
        x = self._group.sum(self.mixer(self.input_norm.rounded(x, residual), batch, cache))
        return self._group.sum(self.feed_forward(self.post_attention_norm.rounded(x, residual)))

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
        case _:
            raise AssertionError(f"{type(mixer).__name__} belongs to a decoder of its own")
