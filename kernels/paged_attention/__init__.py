"""Attention over a paged cache, for prefill, decode and batches that mix them.

Slots that a sequence does not see may hold anything, NaN too: every backend reads zeros in their place. What an aborted
request leaves behind thus harms nobody, and blocks change hands without being cleaned.
"""

from typing import Final

# How many tokens' keys and values are copied out of their pages at a time, unless one sequence has more: by the torch
# backend for sequences that decode, by Triton's for prefills. The memory plan counts on it.
GATHERED_TOKENS: Final = 32_768

# Tokens of the context that one program of Triton's decode works through. Constant, so that the parts of a decode's sum
# do not depend on what else is in the batch.
SPLIT: Final = 256
# What the parts of one launch may take, unless one sequence needs more; a batch with more is decoded in several.
SCRATCH_BYTES: Final = 64 << 20


def part_bytes(num_heads: int, head_dim: int) -> int:
    """Of one part of one sequence: a weighted sum of values, a largest score and a sum of weights, all in float32."""
    return num_heads * (head_dim + 2) * 4


def scratch_bytes(num_heads: int, head_dim: int, longest_context: int) -> int:
    """The most that a decode by Triton takes beside its inputs and its result."""
    return max(SCRATCH_BYTES, -(-longest_context // SPLIT) * part_bytes(num_heads, head_dim))
