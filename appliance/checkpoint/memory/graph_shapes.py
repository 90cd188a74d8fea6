"""Which CUDA graphs the native engine captures. The memory plan and the engine read the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

# Batch sizes that get a graph: these, then steps of 8 up to 64, then of at most a quarter.
_SMALL: Final = (1, 2, 4, 8)
# Larger batches hide the launch overhead by themselves.
MOST_SEQUENCES: Final = 512
# Maximum contexts that get a graph: the decode kernel's grid covers the whole maximum, so short contexts get their own.
_SHORTEST_CONTEXT: Final = 1024
_CONTEXT_FACTOR: Final = 4

# Of steps with prompts: how many of their tokens, beside how many sequences that decode. Tokens that pad a step are
# computed like others, so these are denser where a step takes as long as its tokens do; sequences that pad it are one
# token each. Beyond the last a GPU computes longer than the host launches.
_PREFILL_TOKENS: Final = (32, 64, 128, 192, 256, 384, 512, 768, 1024)
_BESIDE_PREFILLS: Final = (0, 16, 64, 256)
_LONGEST_BESIDE_PREFILLS: Final = 16_384
# Products of 832 rows take cuBLAS a third longer than those of 828 or 896, on an H100.
_INSTEAD: Final = {(64, 768): 704}
# Prompts of fewer tokens each fill up their number before their tokens.
_TOKENS_OF_A_PREFILL: Final = 32

# So many sequences a step may always have where there are drafts, if its requests can fill them.
_ROWS_WITH_DRAFTS: Final = 64


class GraphShape(NamedTuple):
    """Decodes of up to `sequences` sequences; beside them up to `prefill_tokens` tokens of up to `prefills` prompts.
    All see up to `context` tokens."""

    sequences: int
    context: int
    prefill_tokens: int = 0

    @property
    def prefills(self) -> int:
        return 0 if not self.prefill_tokens else max(self.prefill_tokens // _TOKENS_OF_A_PREFILL, 2)

    @property
    def num_tokens(self) -> int:
        return self.sequences + self.prefill_tokens

    @property
    def num_rows(self) -> int:
        """Of logits: one for each sequence."""
        return self.sequences + self.prefills


def graph_shapes(
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    window: int | None = None,
    prefills: bool = False,
) -> list[GraphShape]:
    """All, in the order of their capture: the largest first, whose memory the others then share, then large batches and
    many tokens before few, and all of short contexts before those of long ones. A step decodes at most one token for
    each sequence, and as many as may be batched; with drafts, which decode as sequences do, it has `most_rows`.
    `window` is the longest one of a model whose layers all have one: no more than that is seen of a longer context.
    `prefills`: also of steps with tokens of prompts."""
    most = min(max_num_seqs, max_num_batched_tokens)
    decodes, found = batch_sizes(most), []
    tokens = prefill_sizes(min(max_num_batched_tokens, max_model_len)) if prefills else []
    beside = _up_to(min(most, _BESIDE_PREFILLS[-1]), _BESIDE_PREFILLS)
    for context in context_sizes(max_model_len, window):
        mixed = [
            GraphShape(size, context, _INSTEAD.get((size, count), count))
            for count in reversed(tokens)
            for size in reversed(beside)
        ]
        seen = context if window is None else min(context, window)
        mixed = mixed if seen <= _LONGEST_BESIDE_PREFILLS else []
        found += [*mixed[:1], *(GraphShape(sequences, context) for sequences in reversed(decodes)), *mixed[1:]]
    return found


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
    return _up_to(most, sizes)


def prefill_sizes(most: int) -> list[int]:
    """Up to `most`, included, or to the largest."""
    return _up_to(min(most, _PREFILL_TOKENS[-1]), _PREFILL_TOKENS)


def context_sizes(max_model_len: int, window: int | None = None) -> list[int]:
    """Up to `max_model_len`, included; of `window` see `graph_shapes`."""
    sizes, size = [], _SHORTEST_CONTEXT
    while size < (max_model_len if window is None else min(max_model_len, window)):
        sizes.append(size)
        size *= _CONTEXT_FACTOR
    return [*sizes, max_model_len]


def _up_to(most: int, sizes: Iterable[int]) -> list[int]:
    return [*(size for size in sizes if size < most), most]
