"""Which CUDA graphs the native engine captures, and what they take. The memory plan and the engine read the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

# Sequences of a graph: a step of fewer is padded to the next, so they grow by at most a quarter beyond a few.
_SMALL: Final = (1, 2, 4, 8)
# Tokens that a graph's sequences may see, each: decodes are launched for as many parts of a context.
_SHORTEST_CONTEXT: Final = 1024
_CONTEXT_FACTOR: Final = 4
# Beyond so many sequences a step keeps the GPU busy by itself.
MOST_SEQUENCES: Final = 512


class GraphShape(NamedTuple):
    """Decodes of up to `sequences` sequences, which see up to `context` tokens each."""

    sequences: int
    context: int


def sequence_ladder(max_num_seqs: int) -> list[int]:
    """From 1 to `max_num_seqs`, both included."""
    most = min(max_num_seqs, MOST_SEQUENCES)
    sizes = [size for size in _SMALL if size < most]
    size = _SMALL[-1]
    while size < most:
        size += max(8, 1 << (size.bit_length() - 3))
        sizes.append(size)
    return [*sizes[: sum(size < most for size in sizes)], most]


def context_ladder(max_model_len: int) -> list[int]:
    """Up to `max_model_len`, included."""
    sizes, size = [], _SHORTEST_CONTEXT
    while size < max_model_len:
        sizes.append(size)
        size *= _CONTEXT_FACTOR
    return [*sizes, max_model_len]


def graph_shapes(max_num_seqs: int, max_model_len: int) -> Iterator[GraphShape]:
    """All, in the order of their capture: the largest batch first, whose memory the others then share, and short
    contexts before long ones."""
    for context in context_ladder(max_model_len):
        for sequences in reversed(sequence_ladder(max_num_seqs)):
            yield GraphShape(sequences, context)
