"""Whether a serving engine still generates: after a while without tokens for anybody, it is probed for one.

An engine can send heartbeats and answer health checks and yet generate nothing: its scheduler may wait for blocks
that are never freed, or a collective for a rank that is gone. Only a token proves that it works.
"""

from __future__ import annotations

import math

PROBE_AFTER_S = 10.0
# How long an engine that is not in the middle of a step may take for one token of a short prompt that goes before all
# others. Measured here: 2 to 40 ms.
PROBE_LIMIT_S = 15.0


class ProbeError(RuntimeError):
    """The engine answered a probe with an error."""


class ProbeTimer:
    """Pure bookkeeping over a clock that its caller reads (monotonic seconds)."""

    def __init__(self, now: float) -> None:
        self._last_token = now
        self._asked: float | None = None

    def hurry(self) -> None:
        """There is reason to ask now."""
        self._last_token = -math.inf

    def token(self, now: float) -> None:
        """Somebody got a token."""
        self._last_token = now

    def answered(self, now: float) -> None:
        """The probe got its own."""
        self._last_token = now
        self._asked = None

    def begin(self, now: float) -> bool:
        """Whether a probe is due; then it counts as sent."""
        if self._asked is not None or now - self._last_token < PROBE_AFTER_S:
            return False
        self._asked = now
        return True

    def waiting(self, now: float) -> float | None:
        """Seconds in which a probe has had no answer, and nobody else a token; None where none was sent."""
        return None if self._asked is None else now - max(self._asked, self._last_token)

    def excuse(self, now: float) -> None:
        """We were not listening ourselves: the time until now does not count."""
        if self._asked is not None:
            self._asked = now
