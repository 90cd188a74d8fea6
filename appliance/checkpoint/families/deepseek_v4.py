"""DeepSeek V4, Flash and Pro: a window of tokens as they are beside compressed entries of all (CSA and HCA), a residual
of several streams (mHC), experts that the first layers choose by a table of tokens (DeepSeek-AI, 2026, "DeepSeek-V4").

Tensors have the names of DeepSeek's own checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import structs

from appliance.checkpoint import drafting, index_keys
from appliance.checkpoint.cache_specs import Compressed
from appliance.checkpoint.cuts import by_columns, by_rows
from appliance.checkpoint.experts import TABLE, ExpertFamily, Experts, SharedExperts
from appliance.checkpoint.families.base import Expected, Projection
from appliance.checkpoint.families.decoder import Decoder, Heads, layer_prefix
from appliance.checkpoint.fields import Fields
from appliance.checkpoint.model_config import CompressedAttention, Head, HyperConnections, Indexing, Layer, ModelConfig
from appliance.checkpoint.quantization import EXPERT_DTYPES, KEY, BlockFp8, read_quantization
from appliance.checkpoint.rope import Rope, read_rope

PARTS: Final = ("w1", "w3", "w2")
EMBEDDING, NORM, HEAD = "embed.weight", "norm", "head.weight"
SCORING: Final = "sqrtsoftplus"
SHARED: Final = "shared_experts"
DRAFTS: Final = "mtp."  # what the names of the layers begin with that draft tokens
ALONE, OVERLAPPING, APART = RATIOS = (0, 4, 128)
# What these configs mean where they do not say it.
DEFAULTS: Final[dict[str, Any]] = {
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_hash_layers": 3,
    "sliding_window": 128,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "swiglu_limit": 10.0,
    "compress_rope_theta": 160_000.0,
    "num_nextn_predict_layers": 1,
}


class DeepseekV4(Decoder, frozen=True, kw_only=True):
    """What compressors, routers and the weights of an indexer's heads multiply by is never quantised; it is published
    in bfloat16, and their results are in float32."""

    def read(self, fields: Fields, architecture: str) -> ModelConfig:
        inner = fields.integer("moe_intermediate_size", 1, 1 << 22)
        fields = fields.with_defaults(DEFAULTS | {"intermediate_size": inner})
        if fields.boolean("tie_word_embeddings", default=False):
            fields.unsupported("tie_word_embeddings", "a tied head in this architecture", "false")
        config = super().read(fields, architecture)
        connections = HyperConnections(
            streams=fields.integer("hc_mult", 1, 64),
            iterations=fields.integer("hc_sinkhorn_iters", 1, 1000),
            eps=fields.number("hc_eps", above=0, maximum=1),
        )
        head = _head(fields, config)
        return structs.replace(config, prefix="", ignored=(DRAFTS,), connections=connections, head=head)

    def read_fp8(self, fields: Fields) -> BlockFp8 | None:
        """The experts' format may stand beside the others, and inside; where it stands twice it must be the same."""
        fp8 = read_quantization(fields, EXPERT_DTYPES)
        if fp8 is None:
            if fields.given.get("expert_dtype") is not None:
                fields.refuse("expert_dtype", f"There is no {KEY}: the weights are not quantised.")
            return None
        inner = fields.inside(KEY)
        experts = fields.text("expert_dtype", default=inner.text("expert_dtype", default=EXPERT_DTYPES[0]))
        if experts not in EXPERT_DTYPES:
            fields.refuse("expert_dtype", f"Must be {' or '.join(EXPERT_DTYPES)}.")
        if inner.text("expert_dtype", default=experts) != experts:
            fields.refuse("expert_dtype", f"{KEY} says {inner.given['expert_dtype']}.")
        return structs.replace(fp8, scale=".scale", fp4_experts=experts == "fp4")

    def read_heads(self, fields: Fields, _hidden_size: int) -> Heads:
        """All share one entry a token."""
        heads = fields.integer("num_attention_heads", 1, 1 << 14)
        if fields.integer("num_key_value_heads", 1, 1 << 14) != 1:
            fields.refuse("num_key_value_heads", "Must be 1: all heads share the entries of this architecture.")
        return Heads(heads, 1, fields.integer("head_dim", 2, 1 << 14))

    def read_rope(self, fields: Fields, heads: Heads) -> Rope:
        """Of layers with compressed entries. YaRN's factor for cosines and sines is not taken."""
        rope_dim = fields.integer("qk_rope_head_dim", 2, heads.dim)
        if rope_dim % 2:
            fields.refuse("qk_rope_head_dim", "RoPE needs an even number of dimensions.")
        rope = read_rope(fields, rope_dim, self.rope_theta)
        theta = fields.number("compress_rope_theta", above=1, maximum=1e12)
        scaling = rope.scaling
        if scaling is not None and scaling["rope_type"] == "yarn":
            scaling = scaling | {"attention_factor": 1.0}
        return Rope(theta, scaling, rope_dim)

    def read_layers(self, fields: Fields, num_layers: int, heads: Heads, rope: Rope) -> tuple[Layer, ...]:
        groups = fields.integer("o_groups", 1, 1 << 10)
        if heads.query % groups:
            fields.refuse("o_groups", f"Must divide num_attention_heads ({heads.query}) evenly.")
        alone = CompressedAttention(
            window=fields.integer("sliding_window", 1, 1 << 16),
            query_rank=fields.integer("q_lora_rank", 1, 1 << 16),
            rope_dim=rope.rotary_dim,
            rope_theta=fields.number("rope_theta", above=1, maximum=1e12, default=self.rope_theta),
            rope_scaling=None,
            num_groups=groups,
            group_rank=fields.integer("o_lora_rank", 1, 1 << 16),
        )
        beside = structs.replace(alone, rope_theta=rope.theta, rope_scaling=rope.scaling)
        ratios = _ratios(fields, num_layers)
        mixers = {
            ALONE: alone,
            OVERLAPPING: structs.replace(
                beside,
                ratio=OVERLAPPING,
                overlap=True,
                indexing=_indexing(fields, rope.rotary_dim) if OVERLAPPING in ratios else None,
            ),
            APART: structs.replace(beside, ratio=APART),
        }
        layers = {ratio: _layer(mixer, heads.dim) for ratio, mixer in mixers.items()}
        return tuple(layers[ratio] for ratio in ratios)

    def read_experts(self, fields: Fields, num_layers: int) -> Experts | None:
        scoring = fields.text("scoring_func", default=SCORING)
        if scoring != SCORING:
            fields.unsupported("scoring_func", f"experts scored by {scoring} in this architecture", SCORING)
        experts = super().read_experts(fields, num_layers)
        assert experts is not None
        number = fields.integer("n_shared_experts", 1, 1 << 10)
        return structs.replace(
            experts,
            shared=SharedExperts(
                name=SHARED, intermediate_size=number * experts.intermediate_size, parts=experts.parts
            ),
            router_dtype="float32",
            hashed=frozenset(range(min(fields.integer("num_hash_layers", 0, 1 << 12), num_layers))),
            limit=fields.number("swiglu_limit", minimum=0, maximum=1e6) or None,
        )

    def ends(self, config: ModelConfig) -> Iterator[tuple[str, Expected]]:
        table = Expected((config.vocab_rows, config.hidden_size), cut=by_rows((config.vocab_size,)))
        yield EMBEDDING, table
        yield f"{NORM}.weight", Expected((config.hidden_size,))
        yield HEAD, table
        yield from _one_stream(config, "")

    def norms_and_routers(self, config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
        at, streams = layer_prefix(config, layer), streams_of(config)
        mixed = (2 + streams) * streams
        for part in ("attn", "ffn"):
            yield f"{at}{part}_norm.weight", Expected((config.hidden_size,))
            yield f"{at}hc_{part}_fn", Expected((mixed, streams * config.hidden_size), "float32")
            yield f"{at}hc_{part}_base", Expected((mixed,), "float32")
            yield f"{at}hc_{part}_scale", Expected((3,), "float32")
        if drafting.is_head(config, layer):
            head = drafting.head_of(config)
            for norm in (head.embedding_norm, head.hidden_norm, head.norm):
                yield f"{norm}.weight", Expected((config.hidden_size,))
            yield from _one_stream(config, at)
        yield from _attention_weights(config, layer)
        experts = config.experts
        assert experts is not None
        yield f"{at}ffn.gate.weight", Expected((experts.num_experts, config.hidden_size))
        if layer in experts.hashed:
            yield f"{at}ffn.{TABLE}", Expected((config.vocab_size, experts.routing.top_k), "int64")
        else:
            yield f"{at}ffn.{experts.selection_bias_name}", Expected((experts.num_experts,), "float32")

    def products(self, config: ModelConfig, layer: int) -> Iterator[tuple[Projection, ...]]:
        if drafting.is_head(config, layer):
            yield from ((part,) for part in head_projections(config))
        yield from_hidden(config, layer)
        yield (query_from_latent(config, layer),)
        yield (grouped(config, layer),)
        yield (output(config, layer),)
        if mixer_of(config, layer).indexing is not None:
            yield (index_query(config, layer),)
        yield from self.feed_forward(config, layer)


def mixer_of(config: ModelConfig, layer: int) -> CompressedAttention:
    mixer = config.layers[layer].mixer
    assert isinstance(mixer, CompressedAttention)
    return mixer


def streams_of(config: ModelConfig) -> int:
    assert config.connections is not None
    return config.connections.streams


def head_projections(config: ModelConfig) -> tuple[Projection, Projection]:
    """Of the embedding, and of each stream, in a config that drafts."""
    embedding, stream = drafting.head_of(config).projections
    hidden = config.hidden_size
    return Projection(embedding, hidden, hidden), Projection(stream, hidden, hidden)


def prefix(config: ModelConfig, layer: int) -> str:
    return f"{layer_prefix(config, layer)}attn."


def from_hidden(config: ModelConfig, layer: int) -> tuple[Projection, Projection]:
    """The latent of the queries, and the entry."""
    at, hidden = prefix(config, layer), config.hidden_size
    return (
        Projection(f"{at}wq_a", mixer_of(config, layer).query_rank, hidden),
        Projection(f"{at}wkv", config.head_dim, hidden),
    )


def query_from_latent(config: ModelConfig, layer: int) -> Projection:
    rows = config.num_attention_heads * config.head_dim
    cut = by_rows((rows, config.num_attention_heads))
    return Projection(f"{prefix(config, layer)}wq_b", rows, mixer_of(config, layer).query_rank, cut=cut)


def grouped(config: ModelConfig, layer: int) -> Projection:
    """Of each group of heads some rows, which see these heads alone."""
    mixer = mixer_of(config, layer)
    rows, heads = mixer.num_groups * mixer.group_rank, config.num_attention_heads // mixer.num_groups
    cut = by_rows((rows, mixer.num_groups))
    return Projection(f"{prefix(config, layer)}wo_a", rows, heads * config.head_dim, cut=cut)


def output(config: ModelConfig, layer: int) -> Projection:
    mixer = mixer_of(config, layer)
    columns = mixer.num_groups * mixer.group_rank
    cut = by_columns(columns, mixer.num_groups)
    return Projection(f"{prefix(config, layer)}wo_b", config.hidden_size, columns, cut=cut)


def index_query(config: ModelConfig, layer: int) -> Projection:
    mixer = mixer_of(config, layer)
    assert mixer.indexing is not None
    rows = mixer.indexing.num_heads * mixer.indexing.head_dim
    return Projection(f"{prefix(config, layer)}indexer.wq_b", rows, mixer.query_rank)


def _one_stream(config: ModelConfig, at: str) -> Iterator[tuple[str, Expected]]:
    """What the streams are weighted by where they end."""
    streams = streams_of(config)
    yield f"{at}hc_head_fn", Expected((streams, streams * config.hidden_size), "float32")
    yield f"{at}hc_head_base", Expected((streams,), "float32")
    yield f"{at}hc_head_scale", Expected((1,), "float32")


def _attention_weights(config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
    mixer, at, heads = mixer_of(config, layer), prefix(config, layer), config.num_attention_heads
    yield f"{at}q_norm.weight", Expected((mixer.query_rank,))
    yield f"{at}kv_norm.weight", Expected((config.head_dim,))
    yield f"{at}attn_sink", Expected((heads,), "float32", cut=by_rows((heads, heads)))
    if mixer.ratio:
        yield from _compressor(config, mixer, f"{at}compressor.", config.head_dim)
    if mixer.indexing is not None:
        yield f"{at}indexer.weights_proj.weight", Expected((mixer.indexing.num_heads, config.hidden_size))
        yield from _compressor(config, mixer, f"{at}indexer.compressor.", mixer.indexing.head_dim)


def _compressor(config: ModelConfig, mixer: CompressedAttention, at: str, dim: int) -> Iterator[tuple[str, Expected]]:
    width = mixer.width(dim)
    for name in ("wkv", "wgate"):
        yield f"{at}{name}.weight", Expected((width, config.hidden_size))
    yield f"{at}ape", Expected((mixer.ratio, width), "float32")
    yield f"{at}norm.weight", Expected((dim,))


def _layer(mixer: CompressedAttention, head_dim: int) -> Layer:
    ratio, indexing = mixer.ratio, mixer.indexing
    return Layer(
        mixer=mixer,
        cache=mixer.state(head_dim),
        compressed=Compressed(ratio=ratio, dim=head_dim, rope_dim=mixer.rope_dim) if ratio else None,
        index=index_keys.spec_of(ratio, indexing) if indexing is not None else None,
    )


def _head(fields: Fields, config: ModelConfig) -> Head | None:
    """The first of those behind the layers. It attends to a window alone."""
    heads = fields.integer("num_nextn_predict_layers", 0, 1 << 12)
    ratios = fields.given["compress_ratios"][config.num_hidden_layers :]
    if not heads or ratios[:1] not in ([], [ALONE]):
        return None
    some = config.layers[0].mixer
    assert isinstance(some, CompressedAttention)
    theta = fields.number("rope_theta", above=1, maximum=1e12, default=FAMILY.rope_theta)
    alone = structs.replace(some, ratio=ALONE, overlap=False, indexing=None, rope_theta=theta, rope_scaling=None)
    at = f"{DRAFTS}0."
    return Head(
        layer=_layer(alone, config.head_dim),
        prefix=at,
        embedding_norm=f"{at}enorm",
        hidden_norm=f"{at}hnorm",
        projections=(f"{at}e_proj", f"{at}h_proj"),
        norm=f"{at}norm",
        copies=(f"{at}embed.", f"{at}head.", *(f"{DRAFTS}{number}." for number in range(1, heads))),
    )


def _ratios(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """Of each layer; those of layers that draft tokens may follow."""
    name, given = "compress_ratios", fields.given.get("compress_ratios")
    most = num_layers + fields.integer("num_nextn_predict_layers", 0, 1 << 12)
    if given is None:
        fields.refuse(name, f"Must list a ratio for each of the {num_layers:,} layers.")
    if not isinstance(given, list) or any(type(ratio) is not int or ratio not in RATIOS for ratio in given):
        fields.refuse(name, f"Must list {', '.join(map(str, RATIOS[:-1]))} or {RATIOS[-1]} for each layer.")
    if not num_layers <= len(given) <= most:
        why = f"It has {len(given):,} entries; there must be one for each of the {num_layers:,} layers"
        fields.refuse(name, f"{why}, and up to {most - num_layers:,} for those that draft tokens behind them.")
    return tuple(given[:num_layers])


def _indexing(fields: Fields, rope_dim: int) -> Indexing:
    head_dim = fields.integer("index_head_dim", 2, 1 << 10)
    if head_dim < rope_dim:
        fields.refuse("index_head_dim", f"Must be at least qk_rope_head_dim ({rope_dim}).")
    if head_dim & (head_dim - 1):
        fields.unsupported("index_head_dim", f"an indexer with keys of {head_dim:,} numbers", "powers of two")
    return Indexing(
        num_heads=fields.integer("index_n_heads", 1, 1 << 10),
        head_dim=head_dim,
        top_k=fields.integer("index_topk", 1, 1 << 20),
        interleaved=True,
        mxfp4=index_keys.fits(head_dim),  # as DeepSeek's inference code rounds them
    )


EXPERTS: Final = ExpertFamily(
    block="ffn",
    parts=PARTS,
    count="n_routed_experts",
    inner="moe_intermediate_size",
    scoring=SCORING,
    selection_bias=True,
    selection_bias_name="gate.bias",
    renormalise=None,
)
FAMILY = DeepseekV4(
    model_type="deepseek_v4",
    forward="appliance.models.layers.hyper_connected:HyperConnectedDecoder",
    qkv_bias=None,
    output_bias=None,
    experts=EXPERTS,
)
