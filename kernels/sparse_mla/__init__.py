"""Latent attention over the tokens that an indexer chose for each query."""

from typing import Final

# Most memory that torch's copies of chosen latents take at once, unless those of one query need more.
GATHERED_BYTES: Final = 32 << 20


def queries_together(query_bytes: int) -> int:
    """How many queries torch computes together where the latents of one of them take `query_bytes`."""
    return max(GATHERED_BYTES // max(query_bytes, 1), 1)
