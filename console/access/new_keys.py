"""Keys that were just created: kept in memory only, and shown to the browser that created them until it dismisses
them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

SHOWN_FOR_S = 600.0
MOST_OF_A_SESSION = 20


class NewKey(NamedTuple):
    id: str
    name: str
    text: str
    until: float


class NewKeys:
    """By session: a reload shows a key again, another browser never does."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown: dict[int, list[NewKey]] = {}

    def add(self, session_id: int, key_id: str, name: str, text: str) -> None:
        new = NewKey(key_id, name, text, self._clock() + SHOWN_FOR_S)
        self._shown[session_id] = [*self.of(session_id), new][-MOST_OF_A_SESSION:]

    def of(self, session_id: int) -> list[NewKey]:
        """The session's keys that are not dismissed yet; expired ones of any session are dropped."""
        now = self._clock()
        current = {owner: [key for key in keys if key.until > now] for owner, keys in self._shown.items()}
        self._shown = {owner: keys for owner, keys in current.items() if keys}
        return self._shown.get(session_id, [])

    def forget(self, key_id: str) -> None:
        """Show this key no longer, to anybody: it was dismissed or revoked."""
        self._shown = {owner: [key for key in keys if key.id != key_id] for owner, keys in self._shown.items()}

    def forget_session(self, session_id: int) -> None:
        self._shown.pop(session_id, None)
