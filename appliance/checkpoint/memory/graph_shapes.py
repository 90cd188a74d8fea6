"""Which CUDA graphs the native engine captures. The memory plan and the engine read the same."""

from __future__ import annotations

from typing import Final, NamedTuple

# Batch sizes that get a graph: these, then steps of 8 up to 64, then of at most a quarter.
_SMALL: Final = (1, 2, 4, 8)
# Larger batches hide the launch overhead by themselves.
MOST_SEQUENCES: Final = 512
# Maximum contexts that get a graph: the decode kernel's grid covers the whole maximum, so short contexts get their own.
_SHORTEST_CONTEXT: Final = 1024
_CONTEXT_FACTOR: Final = 4

# So many sequences a step may always have where there are drafts, if its requests can fill them.
_ROWS_WITH_DRAFTS: Final = 64


class GraphShape(NamedTuple):
    """Decodes of up to `sequences` sequences, which see up to `context` tokens each."""

    sequences: int
    context: int


def graph_shapes(*, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> list[GraphShape]:
    """All, in the order of their capture: the largest batch first, whose memory the others then share, and short
    contexts before long ones. A step decodes at most one token for each sequence, and as many as may be batched; with
    drafts, which decode as sequences do, it has `most_rows`."""
    sizes = batch_sizes(min(max_num_seqs, max_num_batched_tokens))
    return [GraphShape(sequences, context) for context in context_sizes(max_model_len) for sequences in reversed(sizes)]


def most_rows(max_num_seqs: int, num_speculative_tokens: int) -> int:
    """Sequences of a step, and its rows of logits, at most: drafts count as sequences, where there is room for them."""
    return max(max_num_seqs, min(max_num_seqs * (1 + num_speculative_tokens), _ROWS_WITH_DRAFTS))


def batch_sizes(most: int) -> list[int]:
    """From 1 to `most`, both included, or to `MOST_SEQUENCES`."""
    most = min(most, MOST_SEQUENCES)
    sizes, size = list(_SMALL), _SMALL[-1]
    while size < most:
        size += max(8, 1 << (size.bit_length() - 3))
        sizes.append(size)
    return [*(size for size in sizes if size < most), most]


def context_sizes(max_model_len: int) -> list[int]:
    """Up to `max_model_len`, included."""
    sizes, size = [], _SHORTEST_CONTEXT
    while size < max_model_len:
        sizes.append(size)
        size *= _CONTEXT_FACTOR
    return [*sizes, max_model_len]
