"""Attention over a paged cache, for prefill, decode and batches that mix them.

Slots a sequence does not see may hold anything, including NaN: every backend reads zeros instead. So what an aborted
request leaves behind does no harm, and blocks are reused without being cleared.
"""

from typing import Final

# How many tokens' keys and values are copied out of their pages at a time, unless one sequence has more: by the torch
# backend for sequences that decode, by Triton's for prefills. The memory plan relies on it.
GATHERED_TOKENS: Final = 32_768

# Tokens of the context that one program of Triton's decode processes. Constant, so that the parts of a decode's sum
# do not depend on what else is in the batch.
SPLIT: Final = 256
# Memory limit for the parts of one launch, unless one sequence needs more; a larger batch takes several launches.
SCRATCH_BYTES: Final = 64 << 20


def part_bytes(num_heads: int, head_dim: int) -> int:
    """Of one part of one sequence: a weighted sum of values, a largest score and a sum of weights, all in float32."""
    return num_heads * (head_dim + 2) * 4


def scratch_bytes(num_heads: int, head_dim: int, longest_context: int) -> int:
    """The most memory a decode by Triton takes beyond its inputs and result."""
    return max(SCRATCH_BYTES, -(-longest_context // SPLIT) * part_bytes(num_heads, head_dim))
