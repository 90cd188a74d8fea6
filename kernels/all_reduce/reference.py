"""All-reduce in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.all_reduce.shared import Shared


def all_reduce(x: Tensor, shared: Shared) -> Tensor:
    """`x` of any shape becomes the sum of all ranks' `x`, added up in float32 in the order of ranks and rounded
    once, so that it is the same in all of them.

    The others' parts lie in `shared`, whose ranks are all in this process: between processes, torch.distributed sums
    what no kernel does.
    """
    parts = [x if rank == shared.rank else shared.part(rank, x) for rank in range(shared.count)]
    total = torch.zeros_like(x, dtype=torch.float32)
    for part in parts:
        total += part
    return x.copy_(total)
