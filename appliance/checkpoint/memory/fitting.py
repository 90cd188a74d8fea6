"""How many sequences of which length a cache holds, as numbers and as a sentence."""

from __future__ import annotations

import bisect
from collections.abc import Callable

import msgspec


class Fitting(msgspec.Struct, frozen=True, kw_only=True):
    """`at_full_length` sequences of `max_model_len` tokens each run at a time, or `max_num_seqs` of `shared_length`;
    that is 0 where the cache does not even hold a block of each."""

    max_model_len: int
    at_full_length: int
    max_num_seqs: int
    shared_length: int

    def __str__(self) -> str:
        """ "256 sequences of 1,904 tokens, or 14 of the full 32,768"."""
        full = f"{self.max_model_len:,}"
        if self.at_full_length >= self.max_num_seqs:
            return f"{_sequences(self.max_num_seqs)} of the full {full} tokens"
        if not self.shared_length:
            return f"{_sequences(self.at_full_length)} of the full {full} tokens"
        several = f"{_sequences(self.max_num_seqs)} of {self.shared_length:,} tokens"
        return f"{several}, or {self.at_full_length:,} of the full {full}"


def fitting(most_sequences: Callable[[int], int], *, max_model_len: int, max_num_seqs: int, block_size: int) -> Fitting:
    """`most_sequences` says how many of such a length run at a time; it never grows with the length."""
    lengths = range(block_size, max_model_len + 1, block_size)
    shared = bisect.bisect_left(lengths, True, key=lambda length: most_sequences(length) < max_num_seqs)
    return Fitting(
        max_model_len=max_model_len,
        at_full_length=min(most_sequences(max_model_len), max_num_seqs),
        max_num_seqs=max_num_seqs,
        shared_length=lengths[shared - 1] if shared else 0,
    )


def _sequences(count: int) -> str:
    return "1 sequence" if count == 1 else f"{count:,} sequences"
