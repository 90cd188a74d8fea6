"""Slows password guessing down: after so many failures in five minutes, an address or an account has to wait."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from console.refusals import Refusal

WINDOW_S = 300.0
FAILURES = 5
"""Of one address, over all accounts."""
FAILURES_OF_ACCOUNT = 50
"""Of one account, from all addresses that never signed in to it: a guess spread over many machines."""
FAILURES_OF_KNOWN_ADDRESS = 60
"""Of an address that signed in to the account before, which only its own failures slow down. Others may share it, such
as everybody behind one router, so that a handful of wrong passwords must not be enough; and so it is not unlimited."""
REMEMBERED = 4096
"""Keys at most: a flood of made-up names must not fill the memory."""


class Throttle:
    """Failures of the last five minutes by key (`address 10.0.0.7`, `account admin`), in memory. Each try brings its
    keys with the failures that are allowed to each."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, deque[float]] = {}

    def wait_s(self, limits: Mapping[str, int]) -> float:
        """How long until one more try is let through; 0 when it is now."""
        now = self._clock()
        return max((self._wait(key, most, now) for key, most in limits.items()), default=0.0)

    def attempt(self, limits: Mapping[str, int]) -> None:
        """Allow an attempt, which counts as failed until `succeeded` is called, so that simultaneous attempts gain
        nothing. Raises Refusal (429) if it comes too soon."""
        wait = self.wait_s(limits)
        if wait > 0:
            remedy = f"Try again in {wait:,.0f} s."
            raise Refusal(429, "Too many failed attempts within five minutes.", remedy, retry_after_s=wait)
        now = self._clock()
        for key, most in limits.items():
            failures = self._failures.pop(key, deque(maxlen=most))
            failures.append(now)
            self._failures[key] = failures
        while len(self._failures) > REMEMBERED:
            self._forget_one()

    def succeeded(self, *keys: str) -> None:
        for key in keys:
            self._failures.pop(key, None)

    def _forget_one(self) -> None:
        """The oldest of those that need not wait: a flood from many addresses must not let a guesser begin anew."""
        allowed = (key for key, failures in self._failures.items() if len(failures) < (failures.maxlen or 0))
        del self._failures[next(allowed, next(iter(self._failures)))]

    def _wait(self, key: str, most: int, now: float) -> float:
        failures = self._failures.get(key)
        if failures is None or len(failures) < most:
            return 0.0
        return max(0.0, failures[0] + WINDOW_S - now)
