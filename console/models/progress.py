"""The running import's progress: written by its thread, read by the pages."""

from __future__ import annotations

import time
from collections import deque

from console.formats import coarse

RATE_OVER_S = 8.0
SILENT_S = 10.0
"""After this long without a byte, the page says that the drive is not responding."""


class Progress:
    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self.stopping = False
        self._last = time.monotonic()
        self._points: deque[tuple[float, int]] = deque([(self._last, 0)])

    def report(self, done: int, total: int) -> None:
        """Count bytes as they arrive."""
        now = time.monotonic()
        self.done, self.total, self._last = done, total, now
        if now - self._points[-1][0] >= 0.25:
            self._points.append((now, done))
            while now - self._points[0][0] > RATE_OVER_S and len(self._points) > 2:
                self._points.popleft()

    @property
    def share(self) -> float:
        return min(1.0, self.done / self.total) if self.total else 0.0

    @property
    def rate(self) -> float:
        """Bytes per second over the last seconds; 0 until it is known."""
        begun, before = self._points[0]
        passed = time.monotonic() - begun
        return max(0, self.done - before) / passed if passed > 1 else 0.0

    @property
    def left(self) -> str:
        """Time left at this rate; empty if unknown."""
        rate = self.rate
        if not rate or self.is_silent:
            return ""
        return coarse(max(1.0, (self.total - self.done) / rate))

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._last

    @property
    def is_silent(self) -> bool:
        return self.silent_s > SILENT_S
