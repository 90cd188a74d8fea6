"""Reads the lines of a child's output file, which is replaced at each start."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from console.engine_control.base import OutputLine

BLOCK: Final = 1 << 16
TAIL_BYTES: Final = 1 << 20
"""The most that is read of what was written before reading began."""

READ_AT_ONCE: Final = 1 << 20
"""Bytes, so that endless output does not block the reader."""

LONGEST_LINE: Final = 1 << 16

FILE_CLOCK_STEP_S: Final = 0.02
"""File times lag the clock by up to this much: a kernel dates writes with its last timer tick, 10 ms apart at most."""


class WrittenLines:
    """Continues where it was, and switches to the new file once the old one has been read to its end.

    The time of a line tells the files apart: no line of a file that was replaced is later than its replacement."""

    def __init__(self, path: Path, tail: int) -> None:
        self._path = path
        self._tail = tail
        self._file: BinaryIO | None = None
        self._rest = b""
        self._first = True
        self._at = 0.0

    def new(self) -> Iterator[OutputLine]:
        """Lines completed since the last call; only the last lines of the first file."""
        if self._file is None:
            if self._open():
                texts = deque(self._read(), maxlen=self._tail if self._first else None)
                yield from self._stamped(texts, self._surely_written() if self._first else time.time())
                self._first = False
            return
        now = time.time()  # before the look: a file that is still in place then was not replaced earlier
        replaced = self._replaced()
        at = self._written() if replaced else now
        texts = deque(self._read())
        yield from self._stamped(texts, at)
        if replaced and not texts:
            if self._rest:
                yield from self._stamped([_text(self._rest)], at)
            self.close()
            yield from self.new()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def _open(self) -> bool:
        try:
            self._file = self._path.open("rb")
        except FileNotFoundError:
            return False
        size = self._file.seek(0, 2)
        self._file.seek(max(size - TAIL_BYTES, 0))
        if size > TAIL_BYTES:
            self._file.readline()
        return True

    def _read(self) -> Iterator[str]:
        assert self._file is not None
        left = READ_AT_ONCE
        while left > 0 and (block := self._file.read(BLOCK)):
            left -= len(block)
            *lines, self._rest = (self._rest + block).split(b"\n")
            self._rest = self._rest[:LONGEST_LINE]
            yield from map(_text, lines)

    def _stamped(self, texts: Iterable[str], at: float) -> Iterator[OutputLine]:
        """The file system's clock is a little slow: times never run backwards."""
        self._at = max(self._at, at)
        return (OutputLine(self._at, text) for text in texts)

    def _written(self) -> float:
        """When the file was last written."""
        assert self._file is not None
        return os.fstat(self._file.fileno()).st_mtime

    def _surely_written(self) -> float:
        """Not before the process that wrote it was started, even if that was within the same tick."""
        return min(self._written() + FILE_CLOCK_STEP_S, time.time())

    def _replaced(self) -> bool:
        """Also while the next file is still to come."""
        assert self._file is not None
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return True
        return not os.path.samestat(there, os.fstat(self._file.fileno()))


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace").rstrip("\r")
