"""What the ranks that share a model say to each other while they compute. All of them make the same calls in the same
order; a rank that is alone makes none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from appliance.models.rank_progress import RankProgress
from kernels.all_reduce.shared import Shared


class Group(Protocol):
    """`count` ranks, of which this one is `rank`, and is as far as `progress` says."""

    rank: int
    count: int
    progress: RankProgress

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all ranks' `x`, which may be overwritten; the same numbers in each of them."""

    def gather(self, x: Tensor) -> Tensor:
        """All ranks' `x` [rows, columns], side by side in order: [rows, count * columns]."""

    def follow(self, x: Tensor) -> Tensor:
        """Overwrite `x` with the first rank's."""

    def all(self, x: Tensor) -> Tensor:
        """Overwrite flags [n] bool with whether they are set in every rank."""

    def wait_for_all(self, device: torch.device) -> None:
        """Return once every rank has come here; not within a CUDA graph."""


class Alone:
    """A model in one process."""

    rank, count = 0, 1
    progress = RankProgress()

    def sum(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> Tensor:
        return x

    def follow(self, x: Tensor) -> Tensor:
        return x

    def all(self, x: Tensor) -> Tensor:
        return x

    def wait_for_all(self, device: torch.device) -> None: ...


ALONE = Alone()


class Distributed:
    """The ranks of torch's process group, which has been initialised: NCCL on GPUs, gloo on CPUs. CUDA graphs hold all
    calls. Gloo's wait for the other ranks, and so does the first of each of NCCL's."""

    def __init__(self, progress: RankProgress | None = None) -> None:
        import torch.distributed as distributed  # late: a rank that is alone does without

        self._distributed = distributed
        # Its name since torch 2.13; the older one warns there.
        self._gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
        self.rank, self.count = distributed.get_rank(), distributed.get_world_size()
        self.progress = RankProgress() if progress is None else progress
        self._shared: Shared | None = None
        self._sum_shared: Callable[[Tensor, Shared], Tensor] | None = None

    def share(self, shared: Shared, all_reduce: Callable[[Tensor, Shared], Tensor]) -> None:
        """Sum by `all_reduce` what `shared` holds, from now on, in all ranks."""
        self._shared, self._sum_shared = shared, all_reduce

    def sum(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        self.progress.wait()
        if self._shared is not None and self._sum_shared is not None and self._shared.holds(x):
            x = self._sum_shared(x, self._shared)
        else:
            self._distributed.all_reduce(x)
        self.progress.go_on()
        return x

    def gather(self, x: Tensor) -> Tensor:
        rows, columns = x.shape
        x, found = x.contiguous(), x.new_empty(self.count * rows, columns)
        self.progress.wait()
        self._gather(found, x)
        self.progress.go_on()
        return found.view(self.count, rows, columns).transpose(0, 1).reshape(rows, -1)

    def follow(self, x: Tensor) -> Tensor:
        self.progress.wait()
        self._distributed.broadcast(x, 0)
        self.progress.go_on()
        return x

    def all(self, x: Tensor) -> Tensor:
        flags = x.to(torch.uint8)
        self.progress.wait()
        self._distributed.all_reduce(flags, op=self._distributed.ReduceOp.MIN)
        self.progress.go_on()
        return x.copy_(flags)

    def wait_for_all(self, device: torch.device) -> None:
        """NCCL's calls are only queued: reading the sum is what waits."""
        found = self.sum(torch.zeros(1, device=device))
        self.progress.wait()
        found.item()
        self.progress.go_on()
