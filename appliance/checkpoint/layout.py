"""The tensors that a dense decoder needs, with their shapes, under the names that checkpoints give them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from appliance.checkpoint.config import ModelConfig

# What checkpoints carry and the engine computes by itself, or has already: a tied head is the embedding again.
IGNORED_SUFFIXES: Final = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias", "lm_head.weight")


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor that the architecture reads."""
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_hidden_layers):
        tensors.update(_layer(config, f"model.layers.{layer}."))
    tensors["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        tensors["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return tensors


def _layer(config: ModelConfig, at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query = config.num_attention_heads * config.head_dim
    key_value = config.num_key_value_heads * config.head_dim
    linears = (
        ("self_attn.q_proj", query, hidden, config.attention_bias),
        ("self_attn.k_proj", key_value, hidden, config.attention_bias),
        ("self_attn.v_proj", key_value, hidden, config.attention_bias),
        ("self_attn.o_proj", hidden, query, config.attention_output_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    )
    for name, rows, columns, bias in linears:
        yield f"{at}{name}.weight", (rows, columns)
        if bias:
            yield f"{at}{name}.bias", (rows,)
    yield f"{at}input_layernorm.weight", (hidden,)
    yield f"{at}post_attention_layernorm.weight", (hidden,)
    if config.qk_norm:
        yield f"{at}self_attn.q_norm.weight", (config.head_dim,)
        yield f"{at}self_attn.k_norm.weight", (config.head_dim,)


def count_parameters(config: ModelConfig) -> int:
    """Without listing every layer: they are alike."""
    layer = sum(math.prod(shape) for _, shape in _layer(config, ""))
    embeddings = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    return embeddings + layer * config.num_hidden_layers + config.hidden_size
