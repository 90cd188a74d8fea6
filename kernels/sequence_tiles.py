"""How kernels find the tokens of a tile when sequences of any length lie end to end.

Sequence i's tiles begin at (tokens before it) // ROWS + i, which leaves room for a last tile that is not full. So the
number of tiles follows from the batch's size alone: tokens // ROWS + sequences, a few of them empty.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sequence_of_tile(tile, query_start_ptr, first_seq, num_seqs, ROWS: tl.constexpr):
    """The sequence of a tile, counted from `first_seq`; where the sequence starts in the batch, how many tokens it has,
    and the tile's first token, counted from there. Beyond the last token the tile is empty."""
    base = tl.load(query_start_ptr + first_seq)
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        before = tl.load(query_start_ptr + first_seq + middle) - base
        if before // ROWS + middle <= tile:
            low = middle
        else:
            high = middle
    start = tl.load(query_start_ptr + first_seq + low)
    length = tl.load(query_start_ptr + first_seq + low + 1) - start
    return low, start, length, (tile - first_tile(start - base, low, ROWS)) * ROWS


@triton.jit
def first_tile(tokens_before, seq, ROWS: tl.constexpr):
    """The first tile of a sequence, counted like `tile` of `sequence_of_tile`."""
    return tokens_before // ROWS + seq
