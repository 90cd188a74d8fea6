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
    held = (*_held(config, mixer, item), _WIDE * sum(mixer.projected(dim)))
    sizes = [dim] + ([mixer.indexing.head_dim] if mixer.indexing is not None else [])
    for size in sizes if mixer.ratio else ():
        projected = 2 * mixer.width(size) * _WIDE
        # What is projected with its base, and behind the tail; the windows of entries; weights and products.
        windows = projected if mixer.overlap else 0
        yield *held, projected, projected, windows, projected // 2, projected // 2
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
    """Bytes of a token where torch projects it to what entries are made of, widening what it multiplies, and of the
    weight so widened."""
    columns = sum(mixer.projected(config.head_dim))
    wide = config.hidden_size * _WIDE
    return (*_held(config, mixer, item), columns * _WIDE, wide), columns * wide


def attending(config: ModelConfig, mixer: CompressedAttention, item: int) -> tuple[int, ...]:
    """What is there while attention works, and the tokens that an indexer chose."""
    of = widths(config, item)
    chosen = 4 * mixer.indexing.top_k + 4 if mixer.indexing is not None else 0
    held = (*_held(config, mixer, item), _WIDE * sum(mixer.projected(config.head_dim)))
    return (*held, of.query, of.query, config.head_dim * item, chosen)


def _held(config: ModelConfig, mixer: CompressedAttention, item: int) -> tuple[int, ...]:
    """All through attention: streams, what it is given, and the latents."""
    of = widths(config, item)
    latents = (mixer.query_rank + config.head_dim) * item, mixer.query_rank * item
    return (of.streams, of.hidden, of.hidden, _INDEX_BYTES, *latents)
