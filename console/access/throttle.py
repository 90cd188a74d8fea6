"""Slows guessing down: so many failures in a time, counted for each address and for each account, then a wait."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from console.errors import Refusal

FAILURES = 5
WINDOW_S = 300.0
REMEMBERED = 4096
"""Keys at most: a flood of made-up names must not fill the memory."""


class Throttle:
    """Failures of the last five minutes by key (`address 10.0.0.7`, `account admin`), in memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, deque[float]] = {}

    def wait_s(self, *keys: str) -> float:
        """How long until one more try is let through; 0 when it is now."""
        now = self._clock()
        return max((self._wait(key, now) for key in keys), default=0.0)

    def attempt(self, *keys: str) -> None:
        """Let a try through, which counts as failed until `succeeded` says otherwise: of many that are judged at once
        no more get by than one after the other. Refuses the one that comes too soon."""
        wait = self.wait_s(*keys)
        if wait > 0:
            raise Refusal(429, "There were five wrong tries within five minutes.", f"Try again in {wait:.0f} s.")
        now = self._clock()
        for key in keys:
            failures = self._failures.pop(key, deque(maxlen=FAILURES))
            failures.append(now)
            self._failures[key] = failures
        while len(self._failures) > REMEMBERED:
            del self._failures[next(iter(self._failures))]

    def succeeded(self, *keys: str) -> None:
        for key in keys:
            self._failures.pop(key, None)

    def _wait(self, key: str, now: float) -> float:
        failures = self._failures.get(key)
        if failures is None or len(failures) < FAILURES:
            return 0.0
        return max(0.0, failures[0] + WINDOW_S - now)
