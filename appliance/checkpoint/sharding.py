"""What one of several ranks has of a model (Megatron-LM, arXiv 1909.08053): some heads of each layer, a part of each
feed-forward layer and of each expert, and some rows of embedding and head. Norms and routers are whole in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import structs

from appliance.checkpoint.cache_specs import FullAttention, SlidingWindow
from appliance.checkpoint.experts import Experts
from appliance.checkpoint.families import family_of
from appliance.checkpoint.families.base import Expected, Projection
from appliance.checkpoint.layout import FP4, expected_tensors
from appliance.checkpoint.model_config import Attention, CompressedAttention, GatedDelta, Layer, ModelConfig
from appliance.checkpoint.quantization import BLOCK, MX_BLOCK, is_scale, weight_of


class Shard(NamedTuple):
    """What a rank takes of a checkpoint's tensor of `shape`: `ranges` along `dim`, one behind the other. Where its room
    is larger than that, the rest is zeros."""

    shape: tuple[int, ...]
    dim: int
    ranges: tuple[range, ...]


Shards = Mapping[str, Shard]


def sharded(config: ModelConfig, ranks: int) -> ModelConfig:
    """The model as each of `ranks` ranks has it; `obstacle` must be None."""
    if ranks == 1:
        return config
    kv_heads = _kv_heads(config, ranks)
    return structs.replace(
        config,
        ranks=ranks,
        num_attention_heads=config.num_attention_heads // ranks,
        num_key_value_heads=kv_heads,
        intermediate_size=config.intermediate_size // ranks,
        layers=tuple(_layer(layer, kv_heads, ranks) for layer in config.layers),
        experts=None if config.experts is None else _experts(config.experts, ranks),
    )


def shards(config: ModelConfig, rank: int, ranks: int) -> dict[str, Shard]:
    """Name -> what `rank` takes of it, for all tensors that are cut; `config` is the whole model's."""
    found: dict[str, Shard] = {}
    tensors = expected_tensors(config) if ranks > 1 else {}
    for name, expected in tensors.items():
        if expected.cut is None:
            continue
        ranges = expected.cut.of_rank(rank, ranks) if expected.cut.parts or rank else (range(expected.shape[0]),)
        block = _numbers_of_one(name, expected.cut.dim, tensors)
        ranges = tuple(range(each.start // block, -(-each.stop // block)) for each in ranges)
        found[name] = Shard(expected.shape, expected.cut.dim, ranges)
    return found


def _numbers_of_one(name: str, dim: int, tensors: Mapping[str, Expected]) -> int:
    """How many of a weight's numbers along `dim` share an element of the tensor: of scales, or of a packed weight."""
    scale = is_scale(name)
    if tensors[weight_of(name) if scale else name].dtype != FP4:
        return BLOCK if scale else 1
    if not dim:
        return 1
    return MX_BLOCK if scale else 2


def obstacle(config: ModelConfig, ranks: int) -> str | None:
    """Why the model cannot be shared by so many, to be written within a sentence; None if it can be."""
    if ranks == 1:
        return None
    for what, size in _counts(config):
        if size % ranks:
            return f"its {size:,} {what} are not divisible by {ranks}"
    heads = config.num_key_value_heads
    if config.latent_attention is None and heads % ranks and ranks % heads:
        return f"its {heads:,} key-value heads can be neither divided nor repeated evenly over {ranks}"
    if config.vocab_size <= (ranks - 1) * -(-config.vocab_size // ranks):
        return f"its vocabulary of {config.vocab_size:,} is too small for {ranks}"
    for part in _in_blocks(config):
        assert part.cut is not None
        kind = "columns" if part.cut.dim else "rows"
        assert config.fp8 is not None
        block, format = BLOCK, "FP8"
        if config.fp8.in_fp4(part.name):
            block, format = MX_BLOCK if part.cut.dim else 1, "MXFP4"
        for each in (each for rank in range(ranks) for each in part.cut.of_rank(rank, ranks)):
            if len(each) % block:
                width = f"{len(each):,} {kind} of {part.name}"
                return f"each would have {width}, not a multiple of the {format} block size {block}"
            if each.start % block:
                return f"{kind} of {part.name} would be cut at {each.start:,}, within an {format} block of {block}"
    return None


def _counts(config: ModelConfig) -> Iterator[tuple[str, int]]:
    yield "attention heads", config.num_attention_heads
    if config.compressed_attention is not None:
        yield "groups of heads", config.compressed_attention.num_groups
    if config.gated_delta is not None:
        yield "key heads of linear attention", config.gated_delta.num_key_heads
    if any(not config.is_sparse(layer) for layer in range(config.num_hidden_layers)):
        yield "inner columns of feed-forward layers", config.intermediate_size
    if config.experts is not None:
        yield "inner columns of experts", config.experts.intermediate_size
        if config.experts.shared is not None:
            yield "inner columns of shared experts", config.experts.shared.intermediate_size


def _in_blocks(config: ModelConfig) -> Iterator[Projection]:
    """Those whose weights are cut and in block-scaled FP8."""
    family = family_of(config.architecture)
    assert family is not None, "its config could not have been read"
    for layer in range(config.num_hidden_layers if config.fp8 is not None else 0):
        parts = [part for product in family.products(config, layer) for part in product]
        if config.is_sparse(layer):
            parts += family.expert(config, layer, 0)
        yield from (part for part in parts if part.cut is not None and config.fp8 and config.fp8.covers(part.name))


def _layer(layer: Layer, kv_heads: int, ranks: int) -> Layer:
    match layer.mixer:
        case GatedDelta() as mixer:
            mixer = structs.replace(
                mixer,
                num_key_heads=mixer.num_key_heads // ranks,
                num_value_heads=mixer.num_value_heads // ranks,
            )
            return Layer(mixer=mixer, cache=mixer.state)
        case CompressedAttention() as mixer:
            return structs.replace(layer, mixer=structs.replace(mixer, num_groups=mixer.num_groups // ranks))
        case Attention():
            assert isinstance(layer.cache, FullAttention | SlidingWindow)
            return structs.replace(layer, cache=structs.replace(layer.cache, num_kv_heads=kv_heads))
        case _:
            return layer  # a latent is of all heads


def _experts(experts: Experts, ranks: int) -> Experts:
    shared = experts.shared
    if shared is not None:
        shared = structs.replace(shared, intermediate_size=shared.intermediate_size // ranks)
    return structs.replace(experts, intermediate_size=experts.intermediate_size // ranks, shared=shared)


def _kv_heads(config: ModelConfig, ranks: int) -> int:
    """Of each rank: where there are fewer than ranks, some have the same."""
    return max(config.num_key_value_heads // ranks, 1)
