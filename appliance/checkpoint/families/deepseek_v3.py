"""DeepSeek V3 and R1, and the models built like them (Kimi K2, Moonlight): latent attention, and behind some dense
layers experts beside shared ones, chosen from groups by sigmoid scores and a learned bias (arXiv 2412.19437)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import structs

from appliance.checkpoint import drafting
from appliance.checkpoint.cache_specs import MLA
from appliance.checkpoint.experts import ExpertFamily, Experts, SharedExperts
from appliance.checkpoint.families import latent_attention
from appliance.checkpoint.families.base import Expected, Projection
from appliance.checkpoint.families.decoder import PARTS, Decoder, Heads, layer_prefix
from appliance.checkpoint.fields import Fields
from appliance.checkpoint.model_config import Head, LatentAttention, Layer, ModelConfig
from appliance.checkpoint.rope import ROPE_TYPES, Rope, read_rope

TOPK_METHOD: Final = "noaux_tc"
SCORING: Final = "sigmoid"
SHARED: Final = "shared_experts"
# What the norms of the latents add to the mean square, whatever `rms_norm_eps` says.
LATENT_EPS: Final = 1e-6
# What these configs mean where they do not say it; null for `n_group` says that there are no groups.
DEFAULTS: Final[Mapping[str, Any]] = {
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
}


class DeepseekV3(Decoder, frozen=True, kw_only=True):
    """Behind the layers that `num_hidden_layers` counts, checkpoints have some that draft tokens (MTP). The first of
    them can be used."""

    @property
    def defaults(self) -> Mapping[str, Any]:
        return DEFAULTS

    def read(self, fields: Fields, architecture: str) -> ModelConfig:
        fields = fields.with_defaults(dict(self.defaults), nullable=("n_group",))
        _check_choices(fields)
        config = super().read(fields, architecture)
        heads = fields.integer("num_nextn_predict_layers", 0, 1 << 12, default=0)
        first = config.num_hidden_layers
        ignored = tuple(f"{config.prefix}layers.{layer}." for layer in range(first, first + heads))
        return structs.replace(config, ignored=ignored, head=self.read_head(fields, config) if heads else None)

    def read_head(self, fields: Fields, config: ModelConfig) -> Head | None:
        """Its block is like those of the other layers with experts."""
        layer = config.num_hidden_layers
        if config.experts is None or not self.has_sparse_head(fields, layer):
            return None
        at = layer_prefix(config, layer)
        return Head(
            layer=config.layers[-1],
            prefix=at,
            embedding_norm=f"{at}enorm",
            hidden_norm=f"{at}hnorm",
            projections=(f"{at}eh_proj",),
            norm=f"{at}shared_head.norm",
            copies=(f"{at}embed_tokens.", f"{at}shared_head.head."),
        )

    def has_sparse_head(self, fields: Fields, layer: int) -> bool:
        """Whether that layer behind the others has experts."""
        return layer in self.read_sparse_layers(fields, layer + 1)

    def read_heads(self, fields: Fields, _hidden_size: int) -> Heads:
        """All heads share the latent, whose size is that of a head in the cache."""
        heads = fields.integer("num_attention_heads", 1, 1 << 14)
        if fields.integer("num_key_value_heads", 1, 1 << 14, default=heads) != heads:
            fields.refuse("num_key_value_heads", f"Must be num_attention_heads ({heads}) with latent attention.")
        return Heads(heads, heads, fields.integer("kv_lora_rank", 1, 1 << 14) + _rope_dim(fields))

    def read_rope(self, fields: Fields, _heads: Heads) -> Rope:
        rope_dim = _rope_dim(fields)
        rope = read_rope(fields, rope_dim, self.rope_theta)
        if rope.rotary_dim != rope_dim:
            fields.refuse("qk_rope_head_dim", f"All of these turn, but other keys say {rope.rotary_dim}.")
        return rope

    def read_layers(self, fields: Fields, num_layers: int, heads: Heads, rope: Rope) -> tuple[Layer, ...]:
        nope_dim = fields.integer("qk_nope_head_dim", 1, 1 << 14)
        kv_rank = heads.dim - rope.rotary_dim
        mixer = LatentAttention(
            query_rank=fields.integer_or_none("q_lora_rank", 1, 1 << 16, default=None),
            kv_rank=kv_rank,
            nope_dim=nope_dim,
            rope_dim=rope.rotary_dim,
            value_dim=fields.integer("v_head_dim", 1, 1 << 14),
            scale=(nope_dim + rope.rotary_dim) ** -0.5 * _mscale(rope) ** 2,
            norm_eps=LATENT_EPS,
        )
        return (Layer(mixer=mixer, cache=MLA(rank=kv_rank, rope_dim=rope.rotary_dim)),) * num_layers

    def read_experts(self, fields: Fields, num_layers: int) -> Experts | None:
        layers = self.read_sparse_layers(fields, num_layers)
        if not layers:
            return None
        experts = super().read_experts(fields, num_layers)
        assert experts is not None
        number, shared = fields.integer("n_shared_experts", 0, 1 << 10, default=0), None
        if number:
            shared = SharedExperts(name=SHARED, intermediate_size=number * experts.intermediate_size)
        return structs.replace(experts, layers=layers, shared=shared, router_dtype="float32")

    def read_sparse_layers(self, fields: Fields, num_layers: int) -> frozenset[int]:
        first = fields.integer("first_k_dense_replace", 0, 1 << 12, default=0)
        step = fields.integer("moe_layer_freq", 1, 1 << 12, default=1)
        return frozenset(layer for layer in range(first, num_layers) if layer % step == 0)

    def products(self, config: ModelConfig, layer: int) -> Iterator[tuple[Projection, ...]]:
        yield from latent_attention.products(config, layer)
        yield from self.feed_forward(config, layer)

    def norms_and_routers(self, config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
        yield from super().norms_and_routers(config, layer)
        yield from latent_attention.norms(config, layer)
        if drafting.is_head(config, layer):
            yield from drafting.own_tensors(config)


def _check_choices(fields: Fields) -> None:
    """Those that every published model makes alike."""
    method = fields.text("topk_method", default=TOPK_METHOD)
    if method != TOPK_METHOD:
        fields.unsupported("topk_method", f"experts chosen by {method}", TOPK_METHOD)
    scoring = fields.text("scoring_func", default=SCORING)
    if scoring != SCORING:
        fields.unsupported("scoring_func", f"experts scored by {scoring} in this architecture", SCORING)
    if not fields.boolean("rope_interleave", default=True):
        fields.unsupported("rope_interleave", "RoPE over halves of a head in latent attention", "true")


def _rope_dim(fields: Fields) -> int:
    rope_dim = fields.integer("qk_rope_head_dim", 2, 1 << 14)
    if rope_dim % 2:
        fields.refuse("qk_rope_head_dim", "RoPE needs an even number of dimensions.")
    return rope_dim


def _mscale(rope: Rope) -> float:
    """By which query and key are multiplied where positions are scaled; cosines and sines then are not."""
    if rope.scaling is None or rope.scaling["rope_type"] not in ROPE_TYPES:  # preflight refuses others
        return 1.0
    return 0.1 * float(rope.scaling.get("mscale_all_dim", 0)) * math.log(rope.scaling["factor"]) + 1


EXPERTS: Final = ExpertFamily(
    block="mlp",
    parts=PARTS,
    count="n_routed_experts",
    inner="moe_intermediate_size",
    scoring=SCORING,
    selection_bias=True,
    selection_bias_name="gate.e_score_correction_bias",
    renormalise=None,
)
FAMILY = DeepseekV3(model_type="deepseek_v3", qkv_bias=None, output_bias=None, experts=EXPERTS)
