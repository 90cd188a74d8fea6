"""Attention over a paged cache of latents (MLA): of each token one vector of `rank` dimensions, from which every head's
key and value follow, and one key for positions of `rope` dimensions, which the heads share.

Slots a sequence does not see may hold anything, including NaN: every backend reads zeros instead, as those of
`paged_attention` do. This module imports no torch: the memory plan reads it.
"""

from typing import Final, NamedTuple

# Most memory that the expanded keys and values of a prefill take at once, unless those of one head need more: so many
# heads are computed together.
EXPANDED_BYTES: Final = 256 << 20

# Query tokens that Triton absorbs at a time: for each, all heads have a query and a result of the latents' rank.
ABSORBED_TOKENS: Final = 512
# Memory limit for the parts of one launch of Triton's decode, unless one sequence needs more.
SCRATCH_BYTES: Final = 128 << 20

# How many times as long as `split`, by which memory is planned, parts are in sm_90's kernel for many heads: the end of
# one takes it as long as six tiles.
LONGER_ON_HOPPER: Final = 2
# Programs of sm_90's kernel for many heads from which on each takes all parts of its sequence: the GPU has 132
# multiprocessors.
PROGRAMS_TOGETHER: Final = 96


class LatentShape(NamedTuple):
    """What the latents of a model are made of, in dimensions."""

    rank: int  # of a token's content, in the cache
    nope: int  # of a head's key that follows from the content
    rope: int  # of the key for positions, in the cache too
    value: int  # of a head's value


# Those that Triton has kernels for: of DeepSeek V2 to R1 and Kimi K2, and of GLM 4.7 Flash and GLM 5.
SHAPES: Final = (LatentShape(512, 128, 64, 128), LatentShape(512, 192, 64, 256))


def heads_together(head_bytes: int, num_heads: int) -> int:
    """How many heads are expanded together where one of them takes `head_bytes`."""
    return min(max(EXPANDED_BYTES // head_bytes, 1), num_heads)


def expanded_bytes(head_bytes: int, num_heads: int) -> int:
    """The most that those heads take. It never falls as one of them takes more."""
    return max(min(EXPANDED_BYTES, head_bytes * num_heads), head_bytes)


def absorbs(shape: LatentShape, query_len: int) -> bool:
    """Whether a chunk of `query_len` tokens takes fewer operations as so many decodes than with its context expanded.
    For each head and token of the context that is rank * (nope + value) products once, by which every query token has
    2 * rank - nope - value fewer."""
    expanding = shape.rank * (shape.nope + shape.value)
    return query_len * (2 * shape.rank - shape.nope - shape.value) <= expanding


def split(num_heads: int) -> int:
    """Tokens of the context that one program of Triton's decode processes. Constant for a model, so that the parts of a
    decode's sum do not depend on what else is in the batch; longer with many heads, whose parts take memory traffic."""
    return 1024 if num_heads > 64 else 512


def part_bytes(num_heads: int, rank: int) -> int:
    """Of one part of one query token: a weighted sum of latents, a largest score and a sum of weights, in float32."""
    return num_heads * (rank + 2) * 4


def scratch_bytes(num_heads: int, rank: int, longest_context: int) -> int:
    """The most memory that the parts of Triton's decodes take."""
    return max(SCRATCH_BYTES, -(-longest_context // split(num_heads)) * part_bytes(num_heads, rank))
