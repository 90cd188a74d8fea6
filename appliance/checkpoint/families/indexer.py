"""The projections and norms of an indexer, as checkpoints of every family that has one name them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from appliance.checkpoint.families import latent_attention
from appliance.checkpoint.families.base import Expected, Projection
from appliance.checkpoint.families.decoder import layer_prefix
from appliance.checkpoint.model_config import Indexing, ModelConfig

PREFIX: Final = "self_attn.indexer."
KEY_NORM: Final = "k_norm"
WEIGHTS: Final = "weights_proj.weight"
# What the norm of the keys adds to the variance, whatever `rms_norm_eps` says.
NORM_EPS: Final = 1e-6


def indexing_of(config: ModelConfig, layer: int) -> Indexing:
    found = latent_attention.mixer_of(config, layer).indexing
    assert found is not None
    return found


def products(config: ModelConfig, layer: int) -> Iterator[tuple[Projection, ...]]:
    yield (query(config, layer),)
    yield (key(config, layer),)


def norms_and_weights(config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
    indexing, at = indexing_of(config, layer), prefix(config, layer)
    for part in ("weight", "bias"):
        yield f"{at}{KEY_NORM}.{part}", Expected((indexing.head_dim,), "float32")
    yield at + WEIGHTS, Expected((indexing.num_heads, config.hidden_size), "float32")


def query(config: ModelConfig, layer: int) -> Projection:
    """From the latent of attention's own queries."""
    indexing, rank = indexing_of(config, layer), latent_attention.mixer_of(config, layer).query_rank
    assert rank is not None
    return Projection(f"{prefix(config, layer)}wq_b", indexing.num_heads * indexing.head_dim, rank)


def key(config: ModelConfig, layer: int) -> Projection:
    return Projection(f"{prefix(config, layer)}wk", indexing_of(config, layer).head_dim, config.hidden_size)


def prefix(config: ModelConfig, layer: int) -> str:
    return f"{layer_prefix(config, layer)}{PREFIX}"
