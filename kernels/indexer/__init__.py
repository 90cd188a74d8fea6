"""An indexer: the few tokens of a context that each query attends to (DeepSeek-AI, 2025, "DeepSeek-V3.2").

`index_cache` writes the key of each token, `indexer` scores and chooses, `sparse_mla` attends to what was chosen. This
module imports no torch: the memory plan reads it.
"""

from typing import Final

# Numbers of a key that share a scale.
GROUP: Final = 128
# Memory limit for the scores of one launch, unless those of one query need more.
SCORE_BYTES: Final = 128 << 20


def key_bytes(head_dim: int) -> int:
    """Of a key in 8 bits, with its scales."""
    return head_dim + -(-head_dim // GROUP) * 4


def queries_together(query_bytes: int) -> int:
    """How many queries are scored together where one of them takes `query_bytes`."""
    return max(SCORE_BYTES // max(query_bytes, 1), 1)


def score_bytes(query_bytes: int, queries: int) -> int:
    """The most that their scores take. It never falls as one of them takes more."""
    return max(min(SCORE_BYTES, query_bytes * queries), query_bytes)
