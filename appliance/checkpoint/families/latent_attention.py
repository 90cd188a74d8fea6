"""The projections and norms of multi-head latent attention, as checkpoints of every family that has it name them."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.checkpoint.cuts import by_columns, by_rows
from appliance.checkpoint.families.base import Expected, Projection
from appliance.checkpoint.families.decoder import layer_prefix
from appliance.checkpoint.model_config import LatentAttention, ModelConfig
from appliance.checkpoint.quantization import BLOCK

QUERY_NORM, LATENT_NORM = "q_a_layernorm", "kv_a_layernorm"


def mixer_of(config: ModelConfig, layer: int) -> LatentAttention:
    mixer = config.layers[layer].mixer
    assert isinstance(mixer, LatentAttention)
    return mixer


def products(config: ModelConfig, layer: int) -> Iterator[tuple[Projection, ...]]:
    """All, those together that are computed as one product."""
    yield from from_hidden(config, layer)
    if mixer_of(config, layer).query_rank is not None:
        yield (query_from_latent(config, layer),)
    yield (keys_and_values(config, layer),)
    yield (output(config, layer),)


def norms(config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
    mixer, at = mixer_of(config, layer), prefix(config, layer)
    if mixer.query_rank is not None:
        yield f"{at}{QUERY_NORM}.weight", Expected((mixer.query_rank,))
    yield f"{at}{LATENT_NORM}.weight", Expected((mixer.kv_rank,))


def from_hidden(config: ModelConfig, layer: int) -> tuple[tuple[Projection, ...], ...]:
    """What is projected from the hidden state: the query, or the latent that it is made from, and the latent of keys
    and values with the part of a key that turns. One product, unless their formats or biases differ."""
    mixer, at = mixer_of(config, layer), prefix(config, layer)
    hidden, bias = config.hidden_size, config.attention_bias
    if mixer.query_rank is None:
        heads = config.num_attention_heads
        rows = heads * mixer.query_dim
        query = Projection(f"{at}q_proj", rows, hidden, cut=by_rows((rows, heads)))
    else:
        query = Projection(f"{at}q_a_proj", mixer.query_rank, hidden, bias)
    latent = Projection(f"{at}kv_a_proj_with_mqa", mixer.latent_dim, hidden, bias)
    return ((query, latent),) if _alike(config, query, latent) else ((query,), (latent,))


def query_from_latent(config: ModelConfig, layer: int) -> Projection:
    mixer = mixer_of(config, layer)
    assert mixer.query_rank is not None
    rows = config.num_attention_heads * mixer.query_dim
    cut = by_rows((rows, config.num_attention_heads))
    return Projection(f"{prefix(config, layer)}q_b_proj", rows, mixer.query_rank, cut=cut)


def keys_and_values(config: ModelConfig, layer: int) -> Projection:
    """Of each head `nope_dim` rows for keys, then `value_dim` for values. Attention takes it apart, so that it is never
    kept in FP8."""
    mixer = mixer_of(config, layer)
    rows = config.num_attention_heads * (mixer.nope_dim + mixer.value_dim)
    cut = by_rows((rows, config.num_attention_heads))
    return Projection(f"{prefix(config, layer)}kv_b_proj", rows, mixer.kv_rank, expanded=True, cut=cut)


def output(config: ModelConfig, layer: int) -> Projection:
    columns = config.num_attention_heads * mixer_of(config, layer).value_dim
    return Projection(
        f"{prefix(config, layer)}o_proj", config.hidden_size, columns, config.attention_output_bias,
        cut=by_columns(columns, config.num_attention_heads),
    )  # fmt: skip


def prefix(config: ModelConfig, layer: int) -> str:
    return f"{layer_prefix(config, layer)}self_attn."


def _alike(config: ModelConfig, first: Projection, second: Projection) -> bool:
    """Whether both have a bias, or neither, and both are in FP8 with the second beginning at a block, or neither."""
    in_fp8 = [config.fp8 is not None and config.fp8.covers(part.name) for part in (first, second)]
    return first.bias == second.bias and in_fp8[0] == in_fp8[1] and not (in_fp8[0] and first.rows % BLOCK)
