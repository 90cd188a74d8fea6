"""What families have in common that are the pre-norm decoder: embedding, layers of attention and a gated feed-forward
layer or experts, norm, head. A family's own file fills in what its architecture fixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from appliance.checkpoint.cache_specs import CacheSpec, FullAttention, SlidingWindow
from appliance.checkpoint.experts import ExpertFamily, read_experts
from appliance.checkpoint.families.base import DECODER, Expected, Projection
from appliance.checkpoint.fields import Fields
from appliance.checkpoint.model_config import Attention, Layer, ModelConfig
from appliance.checkpoint.quantization import read_quantization
from appliance.checkpoint.rope import read_rope

# What Llama's checkpoints, and most others, call the gate, up and down projection.
GATE, UP, DOWN = PARTS = ("gate_proj", "up_proj", "down_proj")
EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"


def no_windows(_fields: Fields, num_layers: int) -> Sequence[int | None]:
    """Every layer sees every token."""
    return (None,) * num_layers


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture fixes or leaves to its config. A bias of None is what `attention_bias` or `mlp_bias` says;
    `head_dim` 0 means hidden_size / num_attention_heads where the config has no head_dim. `qk_norm` is as in
    ModelConfig, or reads it; `windows` gives each layer's window; `check` refuses keys for parts that are not there."""

    model_type: str
    forward: str = DECODER
    qkv_bias: bool | None = False
    output_bias: bool | None = False
    mlp_bias: bool | None = False
    qk_norm: str | Callable[[Fields], str] = ""
    head_dim: int = 0
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    windows: Callable[[Fields, int], Sequence[int | None]] = no_windows
    experts: ExpertFamily | None = None
    check: Callable[[Fields], None] = lambda _fields: None

    @property
    def scoring(self) -> str:
        return self.experts.scoring if self.experts else ""

    def read(self, fields: Fields, architecture: str) -> ModelConfig:
        hidden_size = fields.integer("hidden_size", 1, 1 << 20)
        heads = fields.integer("num_attention_heads", 1, 1 << 14)
        kv_heads = fields.integer("num_key_value_heads", 1, 1 << 14, default=heads)
        if heads % kv_heads:
            fields.refuse("num_key_value_heads", f"Must divide num_attention_heads ({heads}) evenly.")
        head_dim = fields.integer("head_dim", 1, 1 << 14, default=self.head_dim or hidden_size // heads)
        if fields.given.get("head_dim") is None and not self.head_dim and hidden_size % heads:
            fields.refuse("hidden_size", f"Must be a multiple of num_attention_heads ({heads}).")
        num_layers = fields.integer("num_hidden_layers", 1, 1 << 12)
        rope = read_rope(fields, head_dim, self.rope_theta)
        vocab_size = fields.integer("vocab_size", 1, 1 << 24)
        windows = self.windows(fields, num_layers)
        attention_bias = fields.boolean("attention_bias", default=False)
        mlp_bias = fields.boolean("mlp_bias", default=False)
        config = ModelConfig(
            architecture=architecture,
            model_type=fields.text("model_type", default=self.model_type),
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            intermediate_size=fields.integer("intermediate_size", 1, 1 << 22),
            num_hidden_layers=num_layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            hidden_act=fields.text("hidden_act", default="silu"),
            max_position_embeddings=fields.integer("max_position_embeddings", 1, 1 << 24),
            rms_norm_eps=fields.number("rms_norm_eps", above=0, maximum=1, default=self.rms_norm_eps),
            rope_theta=rope.theta,
            rope_scaling=rope.scaling,
            rotary_dim=rope.rotary_dim,
            tie_word_embeddings=fields.boolean("tie_word_embeddings", default=False),
            attention_bias=attention_bias if self.qkv_bias is None else self.qkv_bias,
            attention_output_bias=attention_bias if self.output_bias is None else self.output_bias,
            mlp_bias=mlp_bias if self.mlp_bias is None else self.mlp_bias,
            qk_norm=self.qk_norm if isinstance(self.qk_norm, str) else self.qk_norm(fields),
            layers=tuple(_layer(window, kv_heads, head_dim) for window in windows),
            dtype=_dtype(fields),
            bos_token_id=fields.token_ids("bos_token_id", vocab_size)[0],
            eos_token_ids=tuple(id for id in fields.token_ids("eos_token_id", vocab_size) if id is not None),
            experts=read_experts(fields, self.experts, num_layers),
            fp8=read_quantization(fields),
        )
        if config.experts is not None:
            self.check(fields)
        return config

    def ends(self, config: ModelConfig) -> Iterator[tuple[str, Expected]]:
        table = Expected((config.vocab_size, config.hidden_size))
        yield EMBEDDING, table
        yield "model.norm.weight", Expected((config.hidden_size,))
        if not config.tie_word_embeddings:
            yield HEAD, table

    def norms_and_routers(self, config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
        at = layer_prefix(layer)
        yield f"{at}input_layernorm.weight", Expected((config.hidden_size,))
        yield f"{at}post_attention_layernorm.weight", Expected((config.hidden_size,))
        if config.qk_norm:
            each = config.head_dim
            query = each if config.qk_norm == "head" else each * config.num_attention_heads
            key = each if config.qk_norm == "head" else each * config.num_key_value_heads
            yield f"{at}self_attn.q_norm.weight", Expected((query,))
            yield f"{at}self_attn.k_norm.weight", Expected((key,))
        if config.is_sparse(layer) and config.experts is not None:
            block = f"{at}{config.experts.block}."
            yield f"{block}gate.weight", Expected((config.experts.num_experts, config.hidden_size))
            if config.experts.selection_bias:
                yield f"{block}e_score_correction_bias", Expected((config.experts.num_experts,), "float32")

    def products(self, config: ModelConfig, layer: int) -> Iterator[tuple[Projection, ...]]:
        hidden, inner = config.hidden_size, config.intermediate_size
        query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        at, mlp = f"{layer_prefix(layer)}self_attn.", f"{layer_prefix(layer)}mlp."
        yield (
            Projection(f"{at}q_proj", query, hidden, config.attention_bias),
            Projection(f"{at}k_proj", key, hidden, config.attention_bias),
            Projection(f"{at}v_proj", key, hidden, config.attention_bias),
        )
        yield (Projection(f"{at}o_proj", hidden, query, config.attention_output_bias),)
        if not config.is_sparse(layer):
            yield (
                Projection(f"{mlp}{GATE}", inner, hidden, config.mlp_bias),
                Projection(f"{mlp}{UP}", inner, hidden, config.mlp_bias),
            )
            yield (Projection(f"{mlp}{DOWN}", hidden, inner, config.mlp_bias),)

    def expert(self, config: ModelConfig, layer: int, expert: int) -> tuple[Projection, ...]:
        assert config.experts is not None
        at, inner = expert_prefix(config, layer, expert), config.experts.intermediate_size
        gate, up, down = config.experts.parts
        return (
            Projection(f"{at}{gate}", inner, config.hidden_size),
            Projection(f"{at}{up}", inner, config.hidden_size),
            Projection(f"{at}{down}", config.hidden_size, inner),
        )


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def expert_prefix(config: ModelConfig, layer: int, expert: int) -> str:
    assert config.experts is not None
    return f"{layer_prefix(layer)}{config.experts.block}.experts.{expert}."


def _layer(window: int | None, kv_heads: int, head_dim: int) -> Layer:
    cache: CacheSpec = FullAttention(num_kv_heads=kv_heads, head_dim=head_dim)
    if window is not None:
        cache = SlidingWindow(num_kv_heads=kv_heads, head_dim=head_dim, window=window)
    return Layer(mixer=Attention(window), cache=cache)


def _dtype(fields: Fields) -> str | None:
    name = "dtype" if fields.given.get("dtype") is not None else "torch_dtype"
    return fields.text(name, default="").removeprefix("torch.") or None
