"""The appliance's own questions to vLLM, the self-test and the liveness probe, left out of what vLLM counts: a chart of
the load shows what clients ask for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import msgspec

from appliance.vllm.figures import Figures

_COUNTERS: Final = ("prompt_tokens", "output_tokens", "cache_queries", "cache_hits")


class OwnQuestions:
    def __init__(self) -> None:
        self._one = Figures()
        self._asked = 0
        self._open = 0
        self._last = Figures()

    def learn(self, before: Figures, after: Figures) -> None:
        """What one question adds to the counters, seen while nobody else could ask. What came up to now is our own."""
        self._one = Figures(
            **{name: getattr(after, name) - getattr(before, name) for name in _COUNTERS},
            finished={reason: after.finished[reason] - before.finished.get(reason, 0.0) for reason in after.finished},
        )
        self._last = after

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        self._asked += 1
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def left_out(self, figures: Figures) -> Figures:
        """vLLM's `figures` as they are without ours. A question is taken off before vLLM has counted it, so no counter
        falls below what it was the last time."""
        waiting = min(self._open, int(figures.waiting))
        self._last = msgspec.structs.replace(
            figures,
            waiting=figures.waiting - waiting,
            running=max(figures.running - (self._open - waiting), 0.0),
            finished={
                reason: max(
                    number - self._asked * self._one.finished.get(reason, 0.0), self._last.finished.get(reason, 0.0)
                )
                for reason, number in figures.finished.items()
            },
            **{
                name: max(getattr(figures, name) - self._asked * getattr(self._one, name), getattr(self._last, name))
                for name in _COUNTERS
            },
        )
        return self._last
