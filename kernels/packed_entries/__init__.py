"""Entries of DeepSeek-V4's attention in pages, each the key and the value of all heads: as they are in float32; else
packed as upstream's `fp8_ds_mla` caches are, byte for byte. This module imports no torch: the memory plan reads it.

Of an entry the numbers that do not turn are in e4m3, those that turn in bfloat16. A page has these of all its entries,
then their scales, a byte each: powers of two, as exponents that count from 127. Its end is padded.
"""

import math
from typing import Final

# Numbers that share a scale, in the published models.
GROUP: Final = 64
# Pages are multiples of it, those of an indexer's keys too: what the numbers of a published entry take.
PAGE_UNIT: Final = 576
# The scales of an entry are padded to multiples of it.
SCALES_UNIT: Final = 8
# Of a number, while torch unpacks it: its bits, exponent and mantissa in 32 bits, and what they make.
UNPACKING_BYTES: Final = 28


def group_of(nope: int) -> int:
    """How many of the `nope` numbers that do not turn share a scale."""
    return math.gcd(GROUP, nope)


def data_bytes(dim: int, rope_dim: int) -> int:
    """Of an entry's numbers."""
    return dim - rope_dim + 2 * rope_dim


def scales_bytes(dim: int, rope_dim: int) -> int:
    """Of an entry's scales, with their padding."""
    nope = dim - rope_dim
    return -(-nope // group_of(nope) // SCALES_UNIT) * SCALES_UNIT


def entry_bytes(dim: int, rope_dim: int) -> int:
    """584 in the published models."""
    return data_bytes(dim, rope_dim) + scales_bytes(dim, rope_dim)


def page_bytes(rows: int, each: int) -> int:
    """Of `rows` entries or keys of `each` bytes."""
    return -(-rows * each // PAGE_UNIT) * PAGE_UNIT
