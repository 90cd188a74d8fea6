"""Where ranks find each other's parts.

Each rank has one piece of memory that all others can read and write (`layout`):

    parts   [2, PART_BYTES]      what it adds to a sum; sums take turns with the two halves
    flags   [PROGRAMS, count]    int32, written by rank r in column r: the turn for which r's part is there

A program of the kernel sums one chunk, and only waits for the programs of the other ranks that sum the same. It counts
its turns itself, in `turns`. A rank's part of turn t is overwritten in turn t + 2, which begins once all ranks have
raised their flags of turn t + 1: each did so in a kernel that began after the one that read the part had ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kernels.all_reduce import ITEM_BYTES, PART_BYTES, PROGRAMS, shared_bytes
from kernels.all_reduce.variants import UNIT

# Each rank reads all others' parts whole, while a library's sum of many ranks moves less: the bytes up to which that
# is not slower.
LARGEST: Final = {2: PART_BYTES, 4: 512 << 10, 8: 256 << 10}


@dataclass(frozen=True)
class Shared:
    """The memory of `count` ranks, as rank `rank` sees it. `addresses` [2 * count] int64 are where each rank's parts
    begin, then where its flags do; `turns` [PROGRAMS] int32 is this rank's own. `memory` keeps alive what must be:
    where all ranks are in one process, each rank's bytes."""

    rank: int
    count: int
    addresses: Tensor
    turns: Tensor
    memory: Sequence[Tensor] = ()

    def holds(self, x: Tensor) -> bool:
        """Whether the ranks can sum `x` here."""
        size = x.numel()
        return x.element_size() == ITEM_BYTES and size % UNIT == 0 and size * ITEM_BYTES <= LARGEST[self.count]

    def part(self, rank: int, like: Tensor) -> Tensor:
        """What the rank adds to the first sum, of the size and dtype of `like`; in one process only."""
        begin = PART_BYTES  # the first turn is turn 1
        flat = self.memory[rank][begin : begin + like.numel() * ITEM_BYTES]
        return flat.view(like.dtype).view(like.shape)


def layout(starts: Sequence[int], rank: int, device: torch.device, memory: Sequence[Tensor] = ()) -> Shared:
    """Of ranks whose memory begins at the addresses `starts`, all zeros so far."""
    addresses = [*starts, *(start + 2 * PART_BYTES for start in starts)]
    return Shared(
        rank=rank,
        count=len(starts),
        addresses=torch.tensor(addresses, dtype=torch.int64, device=device),
        turns=torch.zeros(PROGRAMS, dtype=torch.int32, device=device),
        memory=memory,
    )


def alone(rank: int, count: int, device: torch.device) -> Shared:
    """All ranks' memory in this process, where every other rank is ready for the first sum: for one of them to be run
    by itself."""
    memory = [torch.zeros(shared_bytes(count), dtype=torch.uint8, device=device) for _ in range(count)]
    memory[rank][2 * PART_BYTES :].view(torch.int32).fill_(1)
    return layout([part.data_ptr() for part in memory], rank, device, memory)
