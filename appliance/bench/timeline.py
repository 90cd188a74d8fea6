"""Tokens and answers over the time of a load, in at most MOST_BINS steps, whose length doubles as it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MOST_BINS: Final = 600
FIRST_STEP_S: Final = 0.5


class Timeline:
    """`tokens` and `answers` in each step of `step_s` seconds since `began`."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.step_s = FIRST_STEP_S
        self.tokens: list[float] = []
        self.answers: list[float] = []

    def add(self, events: Sequence[float], tokens: int, ended: float) -> None:
        """An answer whose `tokens` came with `events`, in equal parts."""
        for event in events:
            self._put(self.tokens, event, tokens / len(events))
        self._put(self.answers, ended, 1)

    def _put(self, bins: list[float], moment: float, amount: float) -> None:
        while (at := int(max(moment - self.began, 0.0) / self.step_s)) >= MOST_BINS:
            self._double()
        bins.extend([0.0] * (at + 1 - len(bins)))
        bins[at] += amount

    def _double(self) -> None:
        self.step_s *= 2
        for bins in (self.tokens, self.answers):
            bins[:] = [sum(bins[at : at + 2]) for at in range(0, len(bins), 2)]
