"""The tensors that a decoder needs, with their shapes and formats, under the names that checkpoints give them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from appliance.checkpoint.fields import Fields
from appliance.checkpoint.model_config import ModelConfig
from appliance.checkpoint.quantization import BLOCK, BlockFp8, refuse_layer

# What checkpoints carry and the engine computes by itself, or has already: a tied head is the embedding again.
IGNORED_SUFFIXES: Final = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias", "lm_head.weight")
# What a layer's cached keys, and its values, were divided by to fit into FP8, as exporters name it: one number each, if
# it is there at all.
KEY_SCALES: Final = ("k_scale", "k_proj.k_scale", "attn.k_scale")
VALUE_SCALES: Final = ("v_scale", "v_proj.v_scale", "attn.v_scale")
SCALE: Final = "_scale_inv"  # `x.weight_scale_inv` holds the scales of `x.weight`
FP8: Final = "float8_e4m3fn"


class Expected(NamedTuple):
    """A tensor of a checkpoint. `dtype` is that in which it is kept where it is not the model's own."""

    shape: tuple[int, ...]
    dtype: str = ""


class Projection(NamedTuple):
    """A linear layer as a checkpoint has it: `rows` outputs of `columns` inputs."""

    name: str
    rows: int
    columns: int
    bias: bool = False


def expected_tensors(config: ModelConfig) -> dict[str, Expected]:
    """Name -> shape and format of every tensor that the architecture reads."""
    tensors = dict(_ends(config))
    for layer in range(config.num_hidden_layers):
        tensors.update(_layer(config, layer))
        experts = [expert_prefix(config, layer, expert) for expert in range(_num_experts(config, layer))]
        of_first = dict(_first_expert(config, layer))
        for prefix in experts:  # tens of thousands in large models: the first's are looked up once
            tensors.update((prefix + name.removeprefix(experts[0]), tensor) for name, tensor in of_first.items())
    return tensors


def optional_tensors(config: ModelConfig) -> set[str]:
    """Names of tensors that are read where the checkpoint has them."""
    prefixes = [f"{layer_prefix(layer)}self_attn." for layer in range(config.num_hidden_layers)]
    return {prefix + name for prefix in prefixes for name in (*KEY_SCALES, *VALUE_SCALES)}


def weight_bytes(config: ModelConfig, item_bytes: int, *, keep_fp8: bool) -> int:
    """What the weights take, with `item_bytes` for each number in the model's own dtype. Without `keep_fp8`,
    block-scaled weights are multiplied out to that dtype when they are loaded."""

    def size(tensors: Iterator[tuple[str, Expected]]) -> int:
        total = 0
        for name, tensor in tensors:
            if keep_fp8 or not name.endswith(SCALE):
                kept = {FP8: 1 if keep_fp8 else item_bytes, "float32": 4}.get(tensor.dtype, item_bytes)
                total += math.prod(tensor.shape) * kept
        return total

    total = size(_ends(config))
    for layer in range(config.num_hidden_layers):
        total += size(_layer(config, layer))
        total += size(_first_expert(config, layer)) * _num_experts(config, layer)
    return total


def largest_matrix(config: ModelConfig) -> int:
    """Numbers in the largest matrix that the engine multiplies by at once, experts aside."""
    products = (part for layer in range(config.num_hidden_layers) for part in _products(config, layer))
    largest = max(sum(part.rows * part.columns for part in product) for product in products)
    return max(largest, config.vocab_size * config.hidden_size)


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def expert_prefix(config: ModelConfig, layer: int, expert: int) -> str:
    assert config.experts is not None
    return f"{layer_prefix(layer)}{config.experts.block}.experts.{expert}."


def check_fp8_shapes(config: ModelConfig, fp8: BlockFp8, fields: Fields) -> None:
    """Raises CheckpointError where a quantised layer does not fit the engine's products: a product of several
    projections takes all of them in FP8 or none, and a block must not reach from one into the next."""
    # Seldom: a list that names experts by their numbers. Otherwise the first speaks for all.
    some_experts = any(re.search(r"\bexperts\.\d", module) for module in fp8.skipped)
    for layer in range(config.num_hidden_layers):
        for product in _products(config, layer):
            if _quantised(fp8, product, fields):
                for part in product[:-1]:
                    _check_rows(part, fields)
        experts = _num_experts(config, layer)
        if experts:
            looked_at = range(experts if some_experts else 1)
            parts = [part for expert in looked_at for part in _expert_projections(config, layer, expert)]
            if _quantised(fp8, parts, fields):
                _check_rows(parts[0], fields)


def _quantised(fp8: BlockFp8, product: Sequence[Projection], fields: Fields) -> bool:
    covered = [fp8.covers(part.name) for part in product]
    if not any(covered):
        return False
    if not all(covered):
        odd, even = product[covered.index(False)].name, product[covered.index(True)].name
        refuse_layer(fields, odd, f"is excluded from it, while {even}, computed together with it, is not")
    for part in product:
        if part.columns % 16:
            refuse_layer(fields, part.name, f"has {part.columns:,} columns, not a multiple of 16")
    return True


def _check_rows(part: Projection, fields: Fields) -> None:
    if part.rows % BLOCK:
        refuse_layer(fields, part.name, f"has {part.rows:,} rows, not a multiple of {BLOCK}")


def _ends(config: ModelConfig) -> Iterator[tuple[str, Expected]]:
    """What lies before and behind the layers."""
    table = Expected((config.vocab_size, config.hidden_size))
    yield "model.embed_tokens.weight", table
    yield "model.norm.weight", Expected((config.hidden_size,))
    if not config.tie_word_embeddings:
        yield "lm_head.weight", table


def _layer(config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
    """All of a layer but its experts."""
    at = layer_prefix(layer)
    for product in _products(config, layer):
        yield from _tensors(config, product)
    yield f"{at}input_layernorm.weight", Expected((config.hidden_size,))
    yield f"{at}post_attention_layernorm.weight", Expected((config.hidden_size,))
    if config.qk_norm:
        each = config.head_dim
        query = each if config.qk_norm == "head" else each * config.num_attention_heads
        key = each if config.qk_norm == "head" else each * config.num_key_value_heads
        yield f"{at}self_attn.q_norm.weight", Expected((query,))
        yield f"{at}self_attn.k_norm.weight", Expected((key,))
    if config.experts is not None and layer in config.experts.layers:
        block = f"{at}{config.experts.block}."
        yield f"{block}gate.weight", Expected((config.experts.num_experts, config.hidden_size))
        if config.experts.selection_bias:
            yield f"{block}e_score_correction_bias", Expected((config.experts.num_experts,), "float32")


def _first_expert(config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
    """The others are like it; `check_fp8_shapes` sees to it."""
    if _num_experts(config, layer):
        yield from _tensors(config, _expert_projections(config, layer, 0))


def _num_experts(config: ModelConfig, layer: int) -> int:
    return config.experts.num_experts if config.experts is not None and layer in config.experts.layers else 0


def _products(config: ModelConfig, layer: int) -> Iterator[tuple[Projection, ...]]:
    """The linear layers of a layer but its experts', those together that the engine computes as one product."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    at, mlp = f"{layer_prefix(layer)}self_attn.", f"{layer_prefix(layer)}mlp."
    yield (
        Projection(f"{at}q_proj", query, hidden, config.attention_bias),
        Projection(f"{at}k_proj", key, hidden, config.attention_bias),
        Projection(f"{at}v_proj", key, hidden, config.attention_bias),
    )
    yield (Projection(f"{at}o_proj", hidden, query, config.attention_output_bias),)
    if config.experts is None or layer not in config.experts.layers:
        yield (
            Projection(f"{mlp}gate_proj", inner, hidden, config.mlp_bias),
            Projection(f"{mlp}up_proj", inner, hidden, config.mlp_bias),
        )
        yield (Projection(f"{mlp}down_proj", hidden, inner, config.mlp_bias),)


def _expert_projections(config: ModelConfig, layer: int, expert: int) -> tuple[Projection, ...]:
    assert config.experts is not None
    at, inner = expert_prefix(config, layer, expert), config.experts.intermediate_size
    gate, up, down = config.experts.parts
    return (
        Projection(f"{at}{gate}", inner, config.hidden_size),
        Projection(f"{at}{up}", inner, config.hidden_size),
        Projection(f"{at}{down}", config.hidden_size, inner),
    )


def _tensors(config: ModelConfig, product: tuple[Projection, ...]) -> Iterator[tuple[str, Expected]]:
    for name, rows, columns, bias in product:
        quantised = config.fp8 is not None and config.fp8.covers(name)
        yield f"{name}.weight", Expected((rows, columns), FP8 if quantised else "")
        if quantised:
            yield f"{name}.weight{SCALE}", Expected((-(-rows // BLOCK), -(-columns // BLOCK)), "float32")
        if bias:
            yield f"{name}.bias", Expected((rows,))
