"""What an indexer hands to attention."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Chosen(NamedTuple):
    """The tokens that each query attends to, in the order of their positions."""

    slots: Tensor  # [T, top_k] int32, block * block_size + offset of each; -1 behind the last
    counts: Tensor  # [T] int32
