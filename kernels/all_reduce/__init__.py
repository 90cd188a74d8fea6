"""The sum of what the ranks of a model hold, each reading the others' parts from memory that all of them share.

Imports no torch, so that a plan can be made anywhere.
"""

from __future__ import annotations

from typing import Final

PART_BYTES: Final = 16 << 20  # of the largest tensor that is summed so
ITEM_BYTES: Final = 2
CHUNK: Final = 2048  # elements that a program of the kernel sums: 32 bytes a thread
PROGRAMS: Final = PART_BYTES // ITEM_BYTES // CHUNK


def shared_bytes(count: int) -> int:
    """What a rank of `count` shares with all: two parts, and a flag for each rank and program."""
    return 2 * PART_BYTES + PROGRAMS * count * 4
