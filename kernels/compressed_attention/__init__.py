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


# What a query sees is its window and the compressed entries behind that: of a decode so many of these are a part, which
# Triton computes by itself. Constant, so that the parts of a sum do not depend on what else is in the batch.
SPLIT: Final = 192
# The same of sm_90's own kernel, whose parts are five tiles: of the published models, two parts are all that one sees.
SPLIT_ON_HOPPER: Final = 320
# Memory limit for the parts of one launch of Triton's decodes, unless one sequence needs more.
SCRATCH_BYTES: Final = 128 << 20


def part_bytes(heads: int, dim: int) -> int:
    """Of one part of one query: a weighted sum of entries, a largest score and a sum of weights, in float32."""
    return heads * (dim + 2) * 4


def scratch_bytes(heads: int, dim: int, seen: int) -> int:
    """The most that the parts of decodes take, where one of them sees so many entries."""
    return max(SCRATCH_BYTES, -(-seen // SPLIT) * part_bytes(heads, dim))
