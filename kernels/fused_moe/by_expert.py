"""What sorting by expert gives."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Sorted(NamedTuple):
    """Pairs [T * k] by expert, cut into blocks of at most `block_m` pairs of one expert.

    `order` [T * k] int32 holds the pair (token * k + choice) at each place. `blocks` [1 + most, 4] int32 holds the
    number of blocks, and from row 1 on each block's expert, first place and end; further rows are unwritten.
    """

    order: Tensor
    blocks: Tensor

    @property
    def most(self) -> int:
        return self.blocks.shape[0] - 1
