"""What a step of DeepSeek V4 holds at its fullest moments, as `step.moments` has it of other models: its residual is of
several streams, and torch computes what is its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from appliance.checkpoint.model_config import CompressedAttention, ModelConfig

# Bytes of a number of those that torch computes in float32.
_WIDE = 4
# Of a token: its id, its position and its place in the cache.
_INDEX_BYTES = 24


class Widths(NamedTuple):
    """Bytes of a token: its hidden state, its streams, its query, and how many there are of a number."""

    hidden: int
    streams: int
    query: int
    item: int


def widths(config: ModelConfig, item: int) -> Widths:
    assert config.connections is not None
    hidden = config.hidden_size * item
    query = config.num_attention_heads * config.head_dim * item
    return Widths(hidden, config.connections.streams * hidden, query, item)


def around_layers(config: ModelConfig, item: int) -> Iterator[tuple[int, ...]]:
    """Bytes of a token in what is before and behind a sub-layer: streams are widened, squared or weighted, and mixed.
    Two sets of them are there, those that a layer was given and those behind its attention."""
    of = widths(config, item)
    wide = of.streams // item * _WIDE
    widened = 0 if item == _WIDE else wide
    held = (of.streams, of.streams, _INDEX_BYTES)
    yield *held, widened, wide
    yield *held, of.hidden, of.hidden, wide, max(wide, widened), of.streams if widened else 0


def attention(config: ModelConfig, mixer: CompressedAttention, item: int) -> Iterator[tuple[int, ...]]:
    """Of attention but that within its op."""
    of, dim = widths(config, item), config.head_dim
    held = (of.streams, of.hidden, of.hidden, _INDEX_BYTES, (mixer.query_rank + dim) * item, mixer.query_rank * item)
    sizes = [dim] + ([mixer.indexing.head_dim] if mixer.indexing is not None else [])
    for size in sizes if mixer.ratio else ():
        projected = 2 * mixer.width(size) * _WIDE
        # What is projected, the same with its base, behind the tail; the windows of entries; weights and products.
        windows = projected if mixer.overlap else 0
        yield *held, projected, projected, projected, windows, projected // 2, projected // 2
    if mixer.indexing is not None:
        index = mixer.indexing.num_heads * mixer.indexing.head_dim
        if item == _WIDE:
            turned = mixer.indexing.num_heads * mixer.rope_dim * _WIDE
            yield *held, index * item, turned, turned, turned
        else:  # transformed and rounded in float32
            yield *held, index * item, index * item, *(3 * (index * _WIDE,))
    wide = of.query // item * _WIDE
    yield *held, of.query, wide if item < _WIDE else 0, wide
    yield *held, of.query, wide, of.query
    grouped = mixer.num_groups * mixer.group_rank * item
    yield *held, of.query, of.query, grouped, grouped
    yield *held, of.query, of.query, of.query


def projecting(config: ModelConfig, mixer: CompressedAttention, item: int) -> tuple[tuple[int, ...], int]:
    """Bytes of a token where torch makes the product of a compressor, widening what it multiplies, and of the weight so
    widened: that of entries is the largest."""
    of, columns = widths(config, item), 2 * mixer.width(config.head_dim) if mixer.ratio else 0
    latents = (mixer.query_rank + config.head_dim) * item, mixer.query_rank * item
    held = (of.streams, of.hidden, of.hidden, _INDEX_BYTES, *latents)
    return (*held, columns * _WIDE, config.hidden_size * _WIDE), columns * config.hidden_size * _WIDE


def attending(config: ModelConfig, mixer: CompressedAttention, item: int) -> tuple[int, ...]:
    """What is there while attention works, and the tokens that an indexer chose."""
    of = widths(config, item)
    chosen = 4 * mixer.indexing.top_k + 4 if mixer.indexing is not None else 0
    held = (of.streams, of.hidden, of.hidden, _INDEX_BYTES, (mixer.query_rank + config.head_dim) * item)
    return (*held, mixer.query_rank * item, of.query, of.query, config.head_dim * item, chosen)
