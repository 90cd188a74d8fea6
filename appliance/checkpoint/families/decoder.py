"""What families have in common that are the pre-norm decoder: embedding, layers of attention and a gated feed-forward
layer or experts, norm, head. A family's own file fills in what its architecture fixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from appliance.checkpoint.cache_specs import CacheSpec, FullAttention, SlidingWindow
from appliance.checkpoint.cuts import by_columns, by_rows
from appliance.checkpoint.experts import ExpertFamily, Experts, read_experts
from appliance.checkpoint.families.base import DECODER, Expected, Projection
from appliance.checkpoint.fields import Fields
from appliance.checkpoint.model_config import Attention, Layer, ModelConfig
from appliance.checkpoint.quantization import BlockFp8, read_quantization
from appliance.checkpoint.rope import Rope, read_rope

# What Llama's checkpoints, and most others, call the gate, up and down projection.
PARTS: Final = ("gate_proj", "up_proj", "down_proj")
EMBEDDING: Final = "embed_tokens.weight"  # behind the prefix, as the last norm
NORM: Final = "norm"
HEAD: Final = "lm_head.weight"


def no_windows(_fields: Fields, num_layers: int) -> Sequence[int | None]:
    """Every layer sees every token."""
    return (None,) * num_layers


class Heads(NamedTuple):
    """How many there are of queries and of keys, and the size of each in the cache."""

    query: int
    key_value: int
    dim: int


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
        num_layers = fields.integer("num_hidden_layers", 1, 1 << 12)
        heads = self.read_heads(fields, hidden_size)
        rope = self.read_rope(fields, heads)
        vocab_size = fields.integer("vocab_size", 1, 1 << 24)
        attention_bias = fields.boolean("attention_bias", default=False)
        mlp_bias = fields.boolean("mlp_bias", default=False)
        config = ModelConfig(
            architecture=architecture,
            model_type=fields.text("model_type", default=self.model_type),
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            intermediate_size=fields.integer("intermediate_size", 1, 1 << 22),
            num_hidden_layers=num_layers,
            num_attention_heads=heads.query,
            num_key_value_heads=heads.key_value,
            head_dim=heads.dim,
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
            layers=self.read_layers(fields, num_layers, heads, rope),
            dtype=read_dtype(fields),
            bos_token_id=fields.token_ids("bos_token_id", vocab_size)[0],
            eos_token_ids=tuple(id for id in fields.token_ids("eos_token_id", vocab_size) if id is not None),
            experts=self.read_experts(fields, num_layers),
            fp8=self.read_fp8(fields),
        )
        if config.experts is not None:
            self.check(fields)
        return config

    def read_heads(self, fields: Fields, hidden_size: int) -> Heads:
        heads = fields.integer("num_attention_heads", 1, 1 << 14)
        kv_heads = fields.integer("num_key_value_heads", 1, 1 << 14, default=heads)
        if heads % kv_heads:
            fields.refuse("num_key_value_heads", f"Must divide num_attention_heads ({heads}) evenly.")
        head_dim = fields.integer("head_dim", 1, 1 << 14, default=self.head_dim or hidden_size // heads)
        if fields.given.get("head_dim") is None and not self.head_dim and hidden_size % heads:
            fields.refuse("hidden_size", f"Must be a multiple of num_attention_heads ({heads}).")
        return Heads(heads, kv_heads, head_dim)

    def read_rope(self, fields: Fields, heads: Heads) -> Rope:
        return read_rope(fields, heads.dim, self.rope_theta)

    def read_layers(self, fields: Fields, num_layers: int, heads: Heads, _rope: Rope) -> tuple[Layer, ...]:
        return tuple(_layer(window, heads.key_value, heads.dim) for window in self.windows(fields, num_layers))

    def read_experts(self, fields: Fields, num_layers: int) -> Experts | None:
        return read_experts(fields, self.experts, num_layers)

    def read_fp8(self, fields: Fields) -> BlockFp8 | None:
        return read_quantization(fields)

    def ends(self, config: ModelConfig) -> Iterator[tuple[str, Expected]]:
        table = Expected((config.vocab_rows, config.hidden_size), cut=by_rows((config.vocab_size,)))
        yield config.prefix + EMBEDDING, table
        yield f"{config.prefix}{NORM}.weight", Expected((config.hidden_size,))
        if not config.tie_word_embeddings:
            yield HEAD, table

    def norms_and_routers(self, config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
        at = layer_prefix(config, layer)
        yield f"{at}input_layernorm.weight", Expected((config.hidden_size,))
        yield f"{at}post_attention_layernorm.weight", Expected((config.hidden_size,))
        mixer = config.layers[layer].mixer
        if config.qk_norm and isinstance(mixer, Attention):
            heads = {"q_norm": config.num_attention_heads, "k_norm": config.num_key_value_heads}
            for name, count in heads.items():
                norm, size = Expected((config.head_dim,)), count * config.head_dim
                if config.qk_norm == "all":
                    norm = Expected((size,), cut=by_rows((size, count)))
                yield f"{at}self_attn.{name}.weight", norm
        if config.is_sparse(layer) and config.experts is not None:
            block = f"{at}{config.experts.block}."
            router = Expected((config.experts.num_experts, config.hidden_size))
            yield f"{block}gate.weight", router
            if config.experts.selection_bias:
                name = f"{block}{config.experts.selection_bias_name}"
                yield name, Expected((config.experts.num_experts,), "float32")
            if config.experts.shared is not None and config.experts.shared.gate:
                yield f"{block}{config.experts.shared.gate}.weight", Expected((1, config.hidden_size))

    def products(self, config: ModelConfig, layer: int) -> Iterator[tuple[Projection, ...]]:
        hidden, bias, mixer = config.hidden_size, config.attention_bias, config.layers[layer].mixer
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        query, key = heads * config.head_dim, kv_heads * config.head_dim
        at = f"{layer_prefix(config, layer)}self_attn."
        first = Projection(f"{at}q_proj", query, hidden, bias, cut=by_rows((query, heads)))
        if isinstance(mixer, Attention) and mixer.gated:
            first = first._replace(rows=2 * query, unit=config.head_dim, cut=by_rows((2 * query, heads)))
        yield (
            first,
            *(
                Projection(f"{at}{name}", key, hidden, bias, cut=by_rows((key, kv_heads)))
                for name in ("k_proj", "v_proj")
            ),
        )
        out = by_columns(query, heads)
        yield (Projection(f"{at}o_proj", hidden, query, config.attention_output_bias, cut=out),)
        yield from self.feed_forward(config, layer)

    def feed_forward(self, config: ModelConfig, layer: int) -> Iterator[tuple[Projection, ...]]:
        """The gated feed-forward layer of a dense layer, or that of a sparse one's shared experts."""
        at, inner, (gate, up, down) = f"{layer_prefix(config, layer)}mlp.", config.intermediate_size, PARTS
        if config.experts is not None and config.is_sparse(layer):
            shared = config.experts.shared
            if shared is None:
                return
            at = f"{layer_prefix(config, layer)}{config.experts.block}.{shared.name}."
            inner, (gate, up, down) = shared.intermediate_size, shared.parts
        hidden, bias, cut = config.hidden_size, config.mlp_bias, by_rows((inner,))
        yield tuple(Projection(f"{at}{name}", inner, hidden, bias, cut=cut) for name in (gate, up))
        yield (Projection(f"{at}{down}", hidden, inner, bias, cut=by_columns(inner)),)

    def expert(self, config: ModelConfig, layer: int, expert: int) -> tuple[Projection, ...]:
        assert config.experts is not None
        at, inner = expert_prefix(config, layer, expert), config.experts.intermediate_size
        gate, up, down = config.experts.parts
        cut = by_rows((inner,))
        return (
            Projection(f"{at}{gate}", inner, config.hidden_size, cut=cut),
            Projection(f"{at}{up}", inner, config.hidden_size, cut=cut),
            Projection(f"{at}{down}", config.hidden_size, inner, cut=by_columns(inner)),
        )


def layer_prefix(config: ModelConfig, layer: int) -> str:
    if config.drafts and layer == config.num_decoder_layers and config.head is not None:
        return config.head.prefix
    return f"{config.prefix}layers.{layer}."


def expert_prefix(config: ModelConfig, layer: int, expert: int) -> str:
    assert config.experts is not None
    return f"{layer_prefix(config, layer)}{config.experts.block}.experts.{expert}."


def _layer(window: int | None, kv_heads: int, head_dim: int) -> Layer:
    cache: CacheSpec = FullAttention(num_kv_heads=kv_heads, head_dim=head_dim)
    if window is not None:
        cache = SlidingWindow(num_kv_heads=kv_heads, head_dim=head_dim, window=window)
    return Layer(mixer=Attention(window), cache=cache)


def read_dtype(fields: Fields) -> str | None:
    """What the checkpoint was saved in, where it says so."""
    name = "dtype" if fields.given.get("dtype") is not None else "torch_dtype"
    return fields.text(name, default="").removeprefix("torch.") or None
