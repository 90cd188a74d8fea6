"""Qwen3-Next: three layers of the gated delta rule to each of attention, whose result is gated too; experts in every
layer, beside one that all tokens go through. Its norms hold what their weights differ from 1 by.

Qwen3.5 is described from here too, where it is the same (`HybridDecoder`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from msgspec import structs

from appliance.checkpoint import drafting
from appliance.checkpoint.cache_specs import FullAttention
from appliance.checkpoint.cuts import by_columns, by_rows
from appliance.checkpoint.experts import ExpertFamily, Experts, SharedExperts
from appliance.checkpoint.families.base import Expected, Projection
from appliance.checkpoint.families.decoder import PARTS, Decoder, Heads, layer_prefix
from appliance.checkpoint.fields import Fields
from appliance.checkpoint.model_config import STATE_DTYPE, Attention, GatedDelta, Head, Layer, ModelConfig
from appliance.checkpoint.rope import Rope

LINEAR: Final = "linear_attention"
KINDS: Final = (LINEAR, "full_attention")
NORM_OFFSET: Final = 1.0
DRAFTS: Final = "mtp."  # what the names of the layers begin with that draft tokens


class HybridDecoder(Decoder, frozen=True, kw_only=True):
    """`packed` is as in GatedDelta."""

    qkv_bias: bool | None = None
    output_bias: bool | None = None
    qk_norm: str = "head"
    head_dim: int = 256
    packed: bool = False

    def read(self, fields: Fields, architecture: str) -> ModelConfig:
        config = super().read(fields.with_defaults(self.defaults(fields)), architecture)
        heads = fields.integer("mtp_num_hidden_layers", 0, 1 << 12, default=1)
        own_ends = fields.boolean("mtp_use_dedicated_embeddings", default=False)
        head = _head(config) if heads == 1 and not own_ends else None
        return structs.replace(config, norm_offset=NORM_OFFSET, ignored=(DRAFTS,), head=head)

    def defaults(self, _fields: Fields) -> dict[str, Any]:
        """What these configs mean where they do not say it."""
        return {"norm_topk_prob": True, "partial_rotary_factor": 0.25, "full_attention_interval": 4}

    def read_layers(self, fields: Fields, num_layers: int, heads: Heads, _rope: Rope) -> tuple[Layer, ...]:
        if fields.boolean("use_sliding_window", default=False):
            fields.unsupported("use_sliding_window", "sliding windows in this architecture", "false")
        if not fields.boolean("attn_output_gate", default=True):
            fields.unsupported("attn_output_gate", "attention without a gate in this architecture", "true")
        kinds = _layer_kinds(fields, num_layers)
        attention = Layer(
            mixer=Attention(gated=True), cache=FullAttention(num_kv_heads=heads.key_value, head_dim=heads.dim)
        )
        if LINEAR not in kinds:
            return (attention,) * num_layers
        linear = self._linear(fields)
        return tuple(linear if kind == LINEAR else attention for kind in kinds)

    def _linear(self, fields: Fields) -> Layer:
        heads = fields.integer("linear_num_value_heads", 1, 1 << 14, default=32)
        mixer = GatedDelta(
            num_key_heads=fields.integer("linear_num_key_heads", 1, 1 << 14, default=16),
            num_value_heads=heads,
            key_dim=fields.integer("linear_key_head_dim", 1, 1 << 14, default=128),
            value_dim=fields.integer("linear_value_head_dim", 1, 1 << 14, default=128),
            conv_width=fields.integer("linear_conv_kernel_dim", 2, 1 << 8, default=4),
            packed=self.packed,
        )
        if heads % mixer.num_key_heads:
            fields.refuse("linear_num_key_heads", f"Must divide linear_num_value_heads ({heads}) evenly.")
        if fields.text("mamba_ssm_dtype", default=STATE_DTYPE).removeprefix("torch.") != STATE_DTYPE:
            fields.refuse("mamba_ssm_dtype", f"The state of a gated delta layer must be in {STATE_DTYPE}.")
        return Layer(mixer=mixer, cache=mixer.state)

    def read_experts(self, fields: Fields, num_layers: int) -> Experts | None:
        experts = super().read_experts(fields, num_layers)
        if experts is None:
            return None
        shared = SharedExperts(
            name="shared_expert",
            intermediate_size=fields.integer("shared_expert_intermediate_size", 1, 1 << 22),
            gate="shared_expert_gate",
        )
        return structs.replace(experts, shared=shared)

    def norms_and_routers(self, config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
        yield from super().norms_and_routers(config, layer)
        if drafting.is_head(config, layer):
            yield from drafting.own_tensors(config)
        mixer, at = config.layers[layer].mixer, f"{layer_prefix(config, layer)}linear_attn."
        if not isinstance(mixer, GatedDelta):
            return
        yield f"{at}conv1d.weight", Expected((mixer.conv_channels, 1, mixer.conv_width), cut=by_rows(*_mixed(mixer)))
        by_head = Expected((mixer.num_value_heads,), "float32", cut=by_rows((mixer.num_value_heads,)))
        yield f"{at}A_log", by_head
        yield f"{at}dt_bias", by_head
        yield f"{at}norm.weight", Expected((mixer.value_dim,))

    def products(self, config: ModelConfig, layer: int) -> Iterator[tuple[Projection, ...]]:
        """The gates a and b are a product of their own where weights are in FP8, which they never are."""
        mixer, at = config.layers[layer].mixer, f"{layer_prefix(config, layer)}linear_attn."
        if not isinstance(mixer, GatedDelta):
            yield from super().products(config, layer)
            return
        hidden, values = config.hidden_size, mixer.num_value_heads * mixer.value_dim
        mixed, gates = _packed(mixer, at, hidden) if mixer.packed else _flat(mixer, at, hidden)
        yield from ((*mixed, *gates),) if config.fp8 is None else (mixed, gates)
        yield (Projection(f"{at}out_proj", hidden, values, cut=by_columns(values, mixer.num_key_heads)),)
        yield from self.feed_forward(config, layer)


def _head(config: ModelConfig) -> Head:
    """Its layer attends."""
    return Head(
        layer=next(layer for layer in config.layers if isinstance(layer.mixer, Attention)),
        prefix=f"{DRAFTS}layers.0.",
        embedding_norm=f"{DRAFTS}pre_fc_norm_embedding",
        hidden_norm=f"{DRAFTS}pre_fc_norm_hidden",
        projections=(f"{DRAFTS}fc",),
        norm=f"{DRAFTS}norm",
    )


def _layer_kinds(fields: Fields, num_layers: int) -> tuple[str, ...]:
    """As `layer_types` lists them, or every `full_attention_interval`-th of attention; at least one attends."""
    given = fields.given.get("layer_types")
    if given is None:
        interval = fields.integer("full_attention_interval", 1, 1 << 12)
        if interval > num_layers:
            fields.refuse("full_attention_interval", f"None of the {num_layers:,} layers attends; one must.")
        return tuple(KINDS[(layer + 1) % interval == 0] for layer in range(num_layers))
    if not isinstance(given, list) or len(given) != num_layers or any(kind not in KINDS for kind in given):
        fields.refuse("layer_types", f"Must list {' or '.join(KINDS)} for each of the {num_layers:,} layers.")
    if set(given) == {LINEAR}:
        fields.refuse("layer_types", f"None of the {num_layers:,} layers attends; one must.")
    return tuple(given)


def _packed(mixer: GatedDelta, at: str, hidden: int) -> tuple[tuple[Projection, ...], tuple[Projection, ...]]:
    """By key head: its query, its key, and the values and gates of its value heads."""
    heads, group = mixer.num_value_heads, mixer.num_value_heads // mixer.num_key_heads
    rows = mixer.conv_channels + heads * mixer.value_dim
    unit = math.gcd(mixer.key_dim, group * mixer.value_dim)
    return (
        (Projection(f"{at}in_proj_qkvz", rows, hidden, unit=unit, cut=by_rows((rows, mixer.num_key_heads))),),
        (Projection(f"{at}in_proj_ba", 2 * heads, hidden, unit=group, cut=by_rows((2 * heads, mixer.num_key_heads))),),
    )


def _flat(mixer: GatedDelta, at: str, hidden: int) -> tuple[tuple[Projection, ...], tuple[Projection, ...]]:
    heads, key_heads, values = mixer.num_value_heads, mixer.num_key_heads, mixer.num_value_heads * mixer.value_dim
    gates = by_rows((heads, key_heads))
    return (
        (
            Projection(f"{at}in_proj_qkv", mixer.conv_channels, hidden, cut=by_rows(*_mixed(mixer))),
            Projection(f"{at}in_proj_z", values, hidden, cut=by_rows((values, key_heads))),
        ),
        tuple(Projection(f"{at}{name}", heads, hidden, cut=gates) for name in ("in_proj_b", "in_proj_a")),
    )


def _mixed(mixer: GatedDelta) -> tuple[tuple[int, int], ...]:
    """Queries, keys and values, as the convolution sees them side by side."""
    keys, heads = mixer.num_key_heads * mixer.key_dim, mixer.num_key_heads
    return (keys, heads), (keys, heads), (mixer.num_value_heads * mixer.value_dim, heads)


FAMILY = HybridDecoder(
    model_type="qwen3_next",
    packed=True,
    experts=ExpertFamily(
        block="mlp",
        parts=PARTS,
        inner="moe_intermediate_size",
        renormalise=None,
        every_layer=False,
    ),
)
