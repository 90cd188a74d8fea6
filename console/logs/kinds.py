"""Level and process of each line of a log, two bytes a line. They are found in order and at leisure: counting lines is
ten times as fast as reading what they are, and most of a large log is never looked at."""

from __future__ import annotations

import time
from typing import BinaryIO

from console.logs.classify import HEAD, Classifier, Level, LineKind

BLOCK = 128 * 1024
"""Bytes that are always read, whatever the deadline: a log that is not large is known at once."""

_MAX_PROCESSES = 255
_SKIP = 1 << 20


class LineKinds:
    """Of one file that only grows. Its owner sees to it that one thread at a time calls it."""

    def __init__(self) -> None:
        self._position = 0
        self._levels = bytearray()
        self._process_of = bytearray()
        self._processes: list[str] = [""]
        self._classifier = Classifier()

    @property
    def known(self) -> int:
        """Up to which line they have been found."""
        return len(self._levels)

    @property
    def processes(self) -> list[str]:
        """Names of the processes that wrote lines, in order of appearance."""
        return [name for name in self._processes if name]

    def go_on(self, file: BinaryIO, until: int, deadline: float) -> None:
        """Find those of the lines up to `until`, which must be complete, or of as many as there is time for
        (`deadline` by time.monotonic)."""
        file.seek(self._position)
        rest = b""
        while self.known < until:
            *heads, rest = (rest + file.read(BLOCK)).split(b"\n")
            if not heads:  # one line larger than a block
                file.seek(self._position)
                head, length = read_head(file)
                self._take(head, length)
                rest = b""
            for head in heads[: until - self.known]:
                self._take(head[:HEAD], len(head) + 1)
            if time.monotonic() > deadline:
                return

    def _take(self, head: bytes, length: int) -> None:
        kind = self._classifier.feed(head)
        self._levels.append(kind.level)
        self._process_of.append(self._process_number(kind.process))
        self._position += length

    def of(self, number: int) -> LineKind:
        """Of a line that is known."""
        return LineKind(Level(self._levels[number - 1]), self._processes[self._process_of[number - 1]])

    def numbers(self, level: Level, process: str, after: int) -> list[int]:
        """The known lines after `after` that are at least of `level`, and of `process` if one is named."""
        wanted = self._processes.index(process) if process in self._processes else None
        return [
            number
            for number in range(after + 1, self.known + 1)
            if self._levels[number - 1] >= level and (not process or self._process_of[number - 1] == wanted)
        ]

    def _process_number(self, name: str) -> int:
        try:
            return self._processes.index(name)
        except ValueError:
            if len(self._processes) > _MAX_PROCESSES:
                return 0
            self._processes.append(name)
            return len(self._processes) - 1


def read_head(file: BinaryIO) -> tuple[bytes, int]:
    """The beginning of the next line, as far as its kind is read from it, and the line's length with its end."""
    raw = file.readline(HEAD)
    length = len(raw)
    if raw.endswith(b"\n"):
        return raw[:-1], length
    while piece := file.readline(_SKIP):
        length += len(piece)
        if piece.endswith(b"\n"):
            break
    return raw, length
