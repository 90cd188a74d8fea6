"""Ranks as threads of one process: what they compute together, without the seconds that processes take to start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from appliance.models.rank_progress import RankProgress

WITHIN_S = 30


class ThreadGroup:
    """A `Group` whose ranks meet at a barrier."""

    def __init__(self, rank: int, count: int, shared: dict[int, Tensor], barrier: threading.Barrier) -> None:
        self.rank, self.count, self.progress = rank, count, RankProgress()
        self._shared, self._barrier = shared, barrier

    def sum(self, x: Tensor) -> Tensor:
        return x.copy_(torch.stack(self._all(x)).sum(0))

    def gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._all(x), dim=-1)

    def follow(self, x: Tensor) -> Tensor:
        return x.copy_(self._all(x)[0])

    def all(self, x: Tensor) -> Tensor:
        return x.copy_(torch.stack(self._all(x)).all(0))

    def wait_for_all(self, device: torch.device) -> None:
        self._barrier.wait(WITHIN_S)

    def _all(self, x: Tensor) -> list[Tensor]:
        self._shared[self.rank] = x.clone()
        self._barrier.wait(WITHIN_S)
        found = [self._shared[rank] for rank in range(self.count)]
        self._barrier.wait(WITHIN_S)
        assert {each.shape for each in found} == {x.shape}, "the ranks took different steps"
        return found


def together(count: int, run: Callable[[ThreadGroup], Any]) -> Sequence[Any]:
    """What `run` gives in each rank."""
    shared: dict[int, Tensor] = {}
    barrier = threading.Barrier(count)

    def of_rank(rank: int) -> Any:
        try:
            return run(ThreadGroup(rank, count, shared, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(of_rank, rank) for rank in range(count)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]
