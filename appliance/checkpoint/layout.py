"""The tensors of a checkpoint, by what its family says of them: all of them with their shapes and formats, what they
take, and whether quantised ones fit the engine's products."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

from appliance.checkpoint.cuts import COUNTED_ONCE
from appliance.checkpoint.families import family_of
from appliance.checkpoint.families.base import Expected, Family, Projection
from appliance.checkpoint.families.decoder import layer_prefix
from appliance.checkpoint.fields import Fields
from appliance.checkpoint.model_config import ModelConfig
from appliance.checkpoint.quantization import BLOCK, MX_BLOCK, BlockFp8, is_scale, refuse_layer

# What checkpoints carry and the engine computes by itself, or has already: a tied head is the embedding again.
IGNORED_SUFFIXES: Final = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias", "lm_head.weight")
# What a layer's cached keys, and its values, were divided by to fit into FP8, as exporters name it: one number each, if
# it is there at all.
KEY_SCALES: Final = ("k_scale", "k_proj.k_scale", "attn.k_scale")
VALUE_SCALES: Final = ("v_scale", "v_proj.v_scale", "attn.v_scale")
SCALE: Final = "_scale_inv"  # `x.weight_scale_inv` holds the scales of `x.weight`, where a family has no other name
FP8: Final = "float8_e4m3fn"
FP4: Final = "mxfp4"  # two numbers a byte
E8M0: Final = "float8_e8m0fnu"  # of its scales, an exponent each


def expected_tensors(config: ModelConfig) -> dict[str, Expected]:
    """Name -> shape and format of every tensor that the architecture reads."""
    family = _family(config)
    tensors = dict(family.ends(config))
    for layer in range(config.num_hidden_layers):
        tensors.update(_layer(family, config, layer))
        tensors.update(_experts(family, config, layer))
    return tensors


def optional_tensors(config: ModelConfig) -> set[str]:
    """Names of tensors that are read where the checkpoint has them."""
    prefixes = [f"{layer_prefix(config, layer)}self_attn." for layer in range(config.num_hidden_layers)]
    return {prefix + name for prefix in prefixes for name in (*KEY_SCALES, *VALUE_SCALES)}


def is_ignored(config: ModelConfig, name: str) -> bool:
    """Whether the engine has no use for a tensor of that name, and checkpoints are known to hold it."""
    return name.endswith(IGNORED_SUFFIXES) or name.startswith(config.ignored)


def weight_bytes(config: ModelConfig, item_bytes: int, *, keep_fp8: bool) -> int:
    """What the weights take, with `item_bytes` for each number in the model's own dtype. Without `keep_fp8`,
    block-scaled weights, and those in MXFP4, are multiplied out to that dtype when they are loaded."""

    def size(tensors: Iterator[tuple[str, Expected]]) -> int:
        total = 0
        for name, tensor in tensors:
            in_fp8 = keep_fp8 and not tensor.expanded
            if in_fp8 or not is_scale(name):
                quantised = {FP8: 1, FP4: 1, E8M0: 1} if in_fp8 else {FP8: item_bytes, FP4: 2 * item_bytes}
                each = (quantised | {"float32": 4, "int64": 8}).get(tensor.dtype, item_bytes)
                total += math.prod(tensor.shape) * each
        return total

    family = _family(config)
    total = size(family.ends(config))
    for layer in range(config.num_hidden_layers):
        total += size(_layer(family, config, layer))
        total += size(_first_expert(family, config, layer)) * _num_experts(config, layer)
    return total


def loading_bytes(config: ModelConfig) -> int:
    """The scales of weights in MXFP4, a byte each, which are there until all weights have been multiplied by theirs."""
    family, total = _family(config), 0
    for layer in range(config.num_hidden_layers):
        scales = (math.prod(tensor.shape) for _, tensor in _first_expert(family, config, layer) if tensor.dtype == E8M0)
        total += sum(scales) * _num_experts(config, layer)
    return total


def largest_matrix(config: ModelConfig) -> int:
    """Numbers in the largest matrix that the engine multiplies by at once, experts aside."""
    family = _family(config)
    products = (part for layer in range(config.num_hidden_layers) for part in family.products(config, layer))
    largest = max(sum(part.rows * part.columns for part in product) for product in products)
    return max(largest, config.vocab_rows * config.hidden_size)


def check_fp8_shapes(config: ModelConfig, fp8: BlockFp8, fields: Fields) -> None:
    """Raises CheckpointError where a quantised layer does not fit the engine's products: a product of several
    projections takes all of them in FP8 or none, and a block must not reach from one into the next."""
    # Seldom: a list that names experts by their numbers. Otherwise the first speaks for all.
    some_experts = any(re.search(r"\bexperts\.\d", module) for module in fp8.skipped)
    family = _family(config)
    for layer in range(config.num_hidden_layers):
        for product in family.products(config, layer):
            if _quantised(fp8, product, fields):
                for part in product[:-1]:
                    _check_rows(part, fields)
        experts = _num_experts(config, layer)
        if experts:
            looked_at = range(experts if some_experts else 1)
            parts = [part for expert in looked_at for part in family.expert(config, layer, expert)]
            if _quantised(fp8, parts, fields):
                for part in parts:
                    _check_columns(fp8, part, fields)
                if not fp8.in_fp4(parts[0].name):
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
        if part.unit % BLOCK:
            refuse_layer(fields, part.name, f"has parts of {part.unit:,} rows in turn, not a multiple of {BLOCK}")
    return True


def _check_columns(fp8: BlockFp8, part: Projection, fields: Fields) -> None:
    if fp8.in_fp4(part.name) and part.columns % MX_BLOCK:
        refuse_layer(fields, part.name, f"has {part.columns:,} columns in MXFP4, not a multiple of {MX_BLOCK}")


def _check_rows(part: Projection, fields: Fields) -> None:
    if part.rows % BLOCK:
        refuse_layer(fields, part.name, f"has {part.rows:,} rows, not a multiple of {BLOCK}")


def _layer(family: Family, config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
    """All of a layer but its experts."""
    for product in family.products(config, layer):
        yield from _tensors(config, product)
    yield from family.norms_and_routers(config, layer)


def _experts(family: Family, config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
    """Tens of thousands of tensors in large models: what the first expert's are is looked up once."""
    if not (count := _num_experts(config, layer)):
        return
    first = [(part.name, tuple(_tensors(config, (part,)))) for part in family.expert(config, layer, 0)]
    for expert in range(count):
        for (name, tensors), part in zip(first, family.expert(config, layer, expert), strict=True):
            yield from ((part.name + full.removeprefix(name), tensor) for full, tensor in tensors)


def _first_expert(family: Family, config: ModelConfig, layer: int) -> Iterator[tuple[str, Expected]]:
    """The others are like it; `check_fp8_shapes` sees to it."""
    if _num_experts(config, layer):
        yield from _tensors(config, family.expert(config, layer, 0))


def _num_experts(config: ModelConfig, layer: int) -> int:
    return config.experts.num_experts if config.experts is not None and config.is_sparse(layer) else 0


def _family(config: ModelConfig) -> Family:
    family = family_of(config.architecture)
    assert family is not None, "its config could not have been read"
    return family


def _tensors(config: ModelConfig, product: tuple[Projection, ...]) -> Iterator[tuple[str, Expected]]:
    for name, rows, columns, bias, expanded, _, cut in product:
        fp8 = config.fp8 if config.fp8 is not None and config.fp8.covers(name) else None
        if fp8 is not None and fp8.in_fp4(name):
            yield f"{name}.weight", Expected((rows, columns // 2), FP4, expanded, cut)
            yield f"{name}{fp8.scale}", Expected((rows, columns // MX_BLOCK), E8M0, expanded, cut)
        else:
            yield f"{name}.weight", Expected((rows, columns), "" if fp8 is None else FP8, expanded, cut)
            if fp8 is not None:
                scales = Expected((-(-rows // BLOCK), -(-columns // BLOCK)), "float32", expanded, cut)
                yield f"{name}{fp8.scale}", scales
        if bias:
            yield f"{name}.bias", Expected((rows,), cut=COUNTED_ONCE if cut is not None and cut.dim else cut)
