"""An indexer: the few tokens of a context that each query attends to (DeepSeek-AI, 2025, "DeepSeek-V3.2").

`index_cache` writes the key of each token, `indexer` scores and chooses, `sparse_mla` attends to what was chosen. This
module imports no torch: the memory plan reads it.
"""

from typing import Final

# Numbers of a key that share a scale, in 8 bits and in 4.
GROUP: Final = 128
GROUP_OF_4_BITS: Final = 32
# Memory limit for the scores of one launch, unless those of one query need more.
SCORE_BYTES: Final = 128 << 20


def key_bytes(head_dim: int, mxfp4: bool = False) -> int:
    """Of a key in 8 bits with its scales, or in MXFP4: 132 or 68 of 128 numbers."""
    if mxfp4:
        return head_dim // 2 + head_dim // GROUP_OF_4_BITS
    return head_dim + -(-head_dim // GROUP) * 4


def head_dim_of(mxfp4_bytes: int) -> int:
    """The numbers of a key that takes so many bytes in MXFP4."""
    return mxfp4_bytes * 2 * GROUP_OF_4_BITS // (GROUP_OF_4_BITS + 2)


def queries_together(query_bytes: int) -> int:
    """How many queries are scored together where one of them takes `query_bytes`."""
    return max(SCORE_BYTES // max(query_bytes, 1), 1)


def score_bytes(query_bytes: int, queries: int) -> int:
    """The most that their scores take. It never falls as one of them takes more."""
    return max(min(SCORE_BYTES, query_bytes * queries), query_bytes)
