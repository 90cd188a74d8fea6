"""When a stream has been silent for so long that its client should hear from it."""

from __future__ import annotations

import asyncio
from typing import Final, Self

HEARTBEAT_S: Final = 10.0


class Silence:
    """Sets `heard` after each HEARTBEAT_S in which nobody called `ended`. A timer for each wait would take a sixth of
    a token's time, so there is one for all of them, which looks again when it was too early."""

    def __init__(self, heard: asyncio.Event) -> None:
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self.ended()
        self._timer = self._loop.call_at(self._until, self._look)

    @property
    def is_long(self) -> bool:
        return self._loop.time() >= self._until

    def ended(self) -> None:
        """Something has come, or the client has been told that nothing did."""
        self._until = self._loop.time() + HEARTBEAT_S

    def _look(self) -> None:
        due = self._until
        if self.is_long:
            self._heard.set()
            due += HEARTBEAT_S
        self._timer = self._loop.call_at(due, self._look)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
