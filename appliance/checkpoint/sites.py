"""Where a model calls each op: with which shape, in which format, in which layers. Free of torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from appliance.checkpoint.drafting import head_of, is_head
from appliance.checkpoint.families import deepseek_v4, family_of
from appliance.checkpoint.families.base import Family, Projection
from appliance.checkpoint.model_config import (
    STATE_DTYPE,
    Attention,
    CompressedAttention,
    GatedDelta,
    LatentAttention,
    ModelConfig,
)
from kernels.context import Context
from kernels.selection import Place
from kernels.site_key import site_key

FP8: Final = "float8_e4m3fn"
FP4: Final = "mxfp4"


class Site(NamedTuple):
    """`shape` is in words, and that of one rank. `layers` are none where an op is called once a step, before the first
    layer or behind the last one. `key` names it: the op and the numbers of its shape in their order, and the format of
    a product that is in another one than the model."""

    op: str
    shape: str
    dtype: str
    layers: tuple[int, ...] = ()
    key: str = ""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of its shape."""
        return tuple(int(number.replace(",", "")) for number in _NUMBER.findall(self.shape))


_NUMBER: Final = re.compile(r"\d[\d,]*(?<!,)")


def sites(config: ModelConfig, *, dtype: str, cache_dtype: str, keep_fp8: bool) -> tuple[Site, ...]:
    """Of all ops, each shape and format once, in the order in which a step comes to them first. With `keep_fp8` weights
    in block-scaled FP8, and experts in MXFP4, are multiplied as they are."""
    found: dict[Site, list[int]] = {Site("embedding", f"{config.vocab_rows:,} x {config.hidden_size:,}", dtype): []}
    for layer in range(config.num_hidden_layers):
        for site in _of_layer(config, layer, dtype, cache_dtype, keep_fp8):
            layers = found.setdefault(site, [])
            if layers[-1:] != [layer]:
                layers.append(layer)
    if config.connections is not None:
        found[Site("mhc_head", _streams(config), dtype)] = []
    found.setdefault(Site("linear", f"{config.vocab_rows:,} x {config.hidden_size:,}", dtype), [])
    if config.ranks > 1:
        found[Site("all_reduce", f"{config.hidden_size:,}", dtype)] = list(range(config.num_hidden_layers))
    found[Site("sampling", f"{config.vocab_size:,} logits", "float32")] = []
    return tuple(site._replace(layers=tuple(layers), key=_key(site, dtype)) for site, layers in found.items())


def _key(site: Site, dtype: str) -> str:
    return site_key(site.op, *site.sizes, dtype=site.dtype if site.op == "linear" and site.dtype != dtype else "")


def places(config: ModelConfig, context: Context) -> tuple[Place, ...]:
    """What the choice depends on at each of the model's sites, of which `context` describes all. Where a `config` is
    shared by ranks, it is that of one."""
    called = sites(
        config, dtype=context.dtype, cache_dtype=context.cache_dtype, keep_fp8=context.fp8_blocks is not None
    )
    return tuple(Place(site.op, site.key, _context_at(site, config, context)) for site in called)


def has_groups_in_16_bits(config: ModelConfig, *, keep_fp8: bool) -> bool:
    """Whether heads are projected in groups by weights that are not in FP8."""
    return any(
        isinstance(config.layers[layer].mixer, CompressedAttention)
        and not (keep_fp8 and _is_covered(config, [deepseek_v4.grouped(config, layer)]))
        for layer in range(config.num_hidden_layers)
    )


def _context_at(site: Site, config: ModelConfig, context: Context) -> Context:
    match site.op:
        case "linear":
            return replace(context, dtype=site.dtype, row=site.sizes[-1])
        case "fp8_linear":
            *groups, rows, columns = site.sizes
            row = math.gcd(rows, columns)
            return replace(context, row=row, grouped_row=row if groups else 0)
        case "gated_activation":
            return replace(context, row=site.sizes[0])
        case "rms_norm":
            return replace(context, row=site.sizes[0])
        case "paged_attention":
            mixers = (config.layers[layer].mixer for layer in site.layers)
            windows = any(isinstance(mixer, Attention) and mixer.window is not None for mixer in mixers)
            return replace(context, sliding_window=windows)
    return context


def _of_layer(config: ModelConfig, layer: int, dtype: str, cache_dtype: str, keep_fp8: bool) -> Iterator[Site]:
    if is_head(config, layer) and len(head_of(config).projections) == 1:  # others are products of its layer
        yield Site("linear", f"{config.hidden_size:,} x {2 * config.hidden_size:,}", dtype)
    if config.connections is not None:
        yield Site("mhc_pre", _streams(config), dtype)
        yield Site("mhc_post", _streams(config), dtype)
    yield Site("rms_norm", f"{config.hidden_size:,}", dtype)
    match config.layers[layer].mixer:
        case Attention() as mixer:
            yield from _attention(config, mixer, dtype, cache_dtype)
        case LatentAttention() as mixer:
            has_indexer = config.layers[layer].index is not None
            yield from _latent_attention(config, mixer, has_indexer, dtype, cache_dtype)
        case GatedDelta() as mixer:
            yield from _gated_delta(mixer, dtype)
        case CompressedAttention() as mixer:
            yield from _compressed_attention(config, mixer, dtype, cache_dtype)
    yield from _products(config, layer, dtype, keep_fp8)
    yield from _feed_forward(config, layer, dtype, keep_fp8)


def _attention(config: ModelConfig, mixer: Attention, dtype: str, cache_dtype: str) -> Iterator[Site]:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if config.qk_norm == "all":  # those of each head are part of `rotary_cache`
        for count in (heads, kv_heads):
            yield Site("rms_norm", f"{count * config.head_dim:,}", dtype)
    of = f"of {config.head_dim}, {kv_heads} of keys and values"
    window = f", window of {mixer.window:,}" if mixer.window else ""
    yield Site("rotary_cache", f"{heads} heads {of}, {config.rotary_dim} turn", cache_dtype)
    yield Site("paged_attention", f"{heads} heads {of}{window}", cache_dtype)


def _latent_attention(
    config: ModelConfig, mixer: LatentAttention, has_indexer: bool, dtype: str, cache_dtype: str
) -> Iterator[Site]:
    latents = f"latents of {mixer.kv_rank} + {mixer.rope_dim}"
    shape = f"{config.num_attention_heads} heads, {latents}"
    if mixer.query_rank is not None:
        yield Site("rms_norm", f"{mixer.query_rank:,}", dtype)
    yield Site("latent_cache", latents, cache_dtype)
    yield Site("mla_attention", shape, cache_dtype)
    indexing = mixer.indexing
    if indexing is not None:
        if has_indexer:
            yield Site("linear", f"{indexing.num_heads} x {config.hidden_size:,}", "float32")
            yield Site("index_cache", f"keys of {indexing.head_dim}", cache_dtype)
            yield Site("indexer", f"{indexing.num_heads} heads of {indexing.head_dim}", cache_dtype)
        yield Site("sparse_mla", f"{shape}, {indexing.top_k:,} tokens", cache_dtype)


def _gated_delta(mixer: GatedDelta, dtype: str) -> Iterator[Site]:
    keys, values = f"{mixer.num_key_heads} heads of {mixer.key_dim}", f"{mixer.num_value_heads} of {mixer.value_dim}"
    yield Site("causal_conv", f"{mixer.conv_channels:,} channels of {mixer.conv_width}", dtype)
    yield Site("delta_rule", f"{keys}, {values}", STATE_DTYPE)
    yield Site("gated_norm", f"{mixer.num_value_heads} heads of {mixer.value_dim}", dtype)


def _compressed_attention(
    config: ModelConfig, mixer: CompressedAttention, dtype: str, cache_dtype: str
) -> Iterator[Site]:
    heads, dim, indexing = config.num_attention_heads, config.head_dim, mixer.indexing
    yield Site("rms_norm", f"{mixer.query_rank:,}", dtype)
    if mixer.ratio:
        columns = sum(mixer.projected(dim))
        yield Site("linear", f"{columns:,} x {config.hidden_size:,}", dtype)
        yield Site("compressor", f"{dim} of {mixer.ratio} tokens", cache_dtype)
    if indexing is not None:
        keys = f"{indexing.num_heads} heads of {indexing.head_dim}"
        yield Site("compressor", f"{indexing.head_dim} of {mixer.ratio} tokens", cache_dtype)
        yield Site("index_query", keys, dtype)
        yield Site("indexer", keys, cache_dtype)
    yield Site("window_entries", f"{heads} heads of {dim}, {mixer.rope_dim} turn", dtype)
    seen = f"{indexing.top_k:,} entries" if indexing is not None else "all entries"
    beside = f", {seen} of {mixer.ratio} tokens" if mixer.ratio else ""
    yield Site("compressed_attention", f"{heads} heads of {dim}, window of {mixer.window:,}{beside}", cache_dtype)


def _streams(config: ModelConfig) -> str:
    return f"{deepseek_v4.streams_of(config)} streams of {config.hidden_size:,}"


def _family(config: ModelConfig) -> Family:
    family = family_of(config.architecture)
    assert family is not None, "its config could not have been read"
    return family


def _products(config: ModelConfig, layer: int, dtype: str, keep_fp8: bool) -> Iterator[Site]:
    """A product is what the engine multiplies at once: several projections of one input. What attention takes apart is
    part of attention."""
    family = _family(config)
    grouped, mixer = None, config.layers[layer].mixer
    if isinstance(mixer, CompressedAttention):
        grouped = deepseek_v4.grouped(config, layer).name  # which in 16 bits has an op of its own
    for product in family.products(config, layer):
        if product[0].expanded:
            continue
        shape, op = f"{sum(part.rows for part in product):,} x {product[0].columns:,}", "linear"
        if product[0].name == grouped:
            assert isinstance(mixer, CompressedAttention)
            shape, op = f"{mixer.num_groups} x {mixer.group_rank:,} x {product[0].columns:,}", "grouped_linear"
        yield Site("fp8_linear", shape, FP8) if keep_fp8 and _is_covered(config, product) else Site(op, shape, dtype)


def _is_covered(config: ModelConfig, product: Sequence[Projection]) -> bool:
    return config.fp8 is not None and all(config.fp8.covers(part.name) for part in product)


def _feed_forward(config: ModelConfig, layer: int, dtype: str, keep_fp8: bool) -> Iterator[Site]:
    experts = config.experts
    if experts is None or not config.is_sparse(layer):
        yield Site("gated_activation", f"{config.intermediate_size:,}", dtype)
        return
    routing = experts.routing
    groups = f" in {routing.num_groups} groups" if routing.num_groups > 1 else ""
    yield Site("linear", f"{experts.num_experts} x {config.hidden_size:,}", dtype)
    yield Site("moe_routing", f"{routing.top_k} of {experts.num_experts}{groups}", experts.router_dtype or dtype)
    family = _family(config)
    kept = dtype
    if keep_fp8 and config.fp8 is not None and _is_covered(config, family.expert(config, layer, 0)):
        kept = FP4 if config.fp8.fp4_experts else FP8
    shape = f"{experts.num_experts} x {experts.intermediate_size:,} x {config.hidden_size:,}"
    yield Site("fused_moe", shape, kept)
    if experts.shared is not None:
        yield Site("gated_activation", f"{experts.shared.intermediate_size:,}", dtype)
        if experts.shared.gate:
            yield Site("linear", f"1 x {config.hidden_size:,}", dtype)
