"""How far a rank of a model is: one word in memory that all ranks share, written with plain stores as it goes along,
and read by the first rank's watcher (`engine/rank_watch.py`). Imports no torch."""

from __future__ import annotations

import enum
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_BITS, _MASK = 2, 3
_APART = 8  # words: a cache line each
_WORD_BYTES = 8


class Doing(enum.IntEnum):
    PREPARES = 0  # it loads, captures a graph, or waits until a grammar is compiled: nobody knows for how long
    IDLE = 1  # it waits for its next turn
    COMPUTES = 2
    WAITS = 3  # for the other ranks, or for its device


class Place(NamedTuple):
    """`passed` is how many turns began, and how many times it waited: all ranks do the same in the same order, so that
    one that has passed less is behind."""

    doing: Doing
    passed: int


def place_of(word: int) -> Place:
    return Place(Doing(word & _MASK), word >> _BITS)


class RankProgress:
    """Written by one thread of one rank. It begins as `PREPARES`, and does not say that it waits while it prepares."""

    def __init__(self, word: memoryview[int] | None = None) -> None:
        """`word` is one number of format "q", which the first rank reads; without it progress is kept to itself."""
        self._word = memoryview(bytearray(8)).cast("q") if word is None else word
        self._passed = 0
        self._doing = self._when_waiting = int(Doing.PREPARES)

    def begin_turn(self) -> None:
        self._passed += 1
        self._become(Doing.COMPUTES)

    def end_turn(self) -> None:
        self._become(Doing.IDLE)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        before = Doing(self._doing)
        self._become(Doing.PREPARES)
        try:
            yield
        finally:
            self._become(before)

    # Called for every collective: each costs a tenth of a microsecond.

    def wait(self) -> None:
        """Just before what may wait."""
        self._passed = passed = self._passed + 1
        self._word[0] = passed << _BITS | self._when_waiting

    def go_on(self) -> None:
        """Just after it."""
        self._word[0] = self._passed << _BITS | self._doing

    def _become(self, doing: Doing) -> None:
        self._doing = int(doing)
        self._when_waiting = int(Doing.WAITS if doing is Doing.COMPUTES else doing)
        self._word[0] = self._passed << _BITS | self._doing


class SharedProgress:
    """The words of all ranks, behind a file descriptor that their processes inherit."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._words = memoryview(mmap.mmap(fd, 0)).cast("q")

    @classmethod
    def of(cls, ranks: int) -> SharedProgress:
        """All of them prepare."""
        fd = os.memfd_create("ingot-ranks")
        os.ftruncate(fd, ranks * _APART * _WORD_BYTES)
        return cls(fd)

    def words(self) -> list[int]:
        """Of all ranks, in order."""
        return self._words[::_APART].tolist()

    def rank(self, rank: int) -> RankProgress:
        """What that rank writes."""
        return RankProgress(self._words[rank * _APART : rank * _APART + 1])
