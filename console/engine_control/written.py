"""Reads the lines of a child's output file, which is replaced at each start."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

BLOCK: Final = 1 << 16
TAIL_BYTES: Final = 1 << 20
"""The most that is read of what was written before reading began."""

READ_AT_ONCE: Final = 1 << 20
"""Bytes, so that endless output does not block the reader."""

LONGEST_LINE: Final = 1 << 16


class WrittenLines:
    """Continues where it was, and switches to the new file once the old one has been read to its end."""

    def __init__(self, path: Path, tail: int) -> None:
        self._path = path
        self._tail = tail
        self._file: BinaryIO | None = None
        self._rest = b""

    def new(self) -> Iterator[str]:
        """Lines completed since the last call; only the last lines of the first file."""
        if self._file is None:
            if self._open():
                yield from deque(self._read(), maxlen=self._tail)
            return
        read = False
        for line in self._read():
            read = True
            yield line
        if not read and self._replaced():
            if self._rest:
                yield _text(self._rest)
            self.close()
            if self._open():
                yield from self._read()

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

    def _replaced(self) -> bool:
        assert self._file is not None
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        return not os.path.samestat(there, os.fstat(self._file.fileno()))


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace").rstrip("\r")
