"""DeepSeek-V4's attention: over the last tokens, and over compressed entries of all tokens before. This module imports
no torch: the memory plan reads it."""

from typing import Final

# Most memory that torch's copies of chosen entries take at once, unless those of one query need more.
GATHERED_BYTES: Final = 32 << 20


def gathered_bytes(heads: int, width: int, copied: int) -> int:
    """Of a query that sees `width` entries: its scores, twice, and `copied` bytes of entries that are its own."""
    return 8 * heads * width + copied


def queries_together(query_bytes: int) -> int:
    """How many queries torch computes together where one of them takes `query_bytes`."""
    return max(GATHERED_BYTES // max(query_bytes, 1), 1)
