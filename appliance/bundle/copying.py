"""Copying and hashing at once, at the speed of the disk: the hash of one piece is made while the next is read and
written, with two buffers however large the file."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from appliance.bundle.errors import StoppedError

PIECE: Final = 4 << 20
Report = Callable[[int, int], None]


class ReadInto(Protocol):
    """Fills the start of a buffer from the byte `at` on; how much, 0 at the end."""

    def __call__(self, buffer: memoryview, at: int, /) -> int: ...


def write_all(fd: int, piece: memoryview) -> None:
    """One write may take less than it is given."""
    while piece:
        piece = piece[os.write(fd, piece) :]


def silent(done: int, total: int) -> None:
    """For callers that show no progress."""


class Copier:
    """Copies files one by one; `advance` is called for every piece, and `stop` ends it between two."""

    def __init__(self, advance: Callable[[int], None], stop: threading.Event | None = None) -> None:
        self._advance = advance
        self._stop = stop
        self._buffers = [memoryview(bytearray(PIECE)) for _ in range(2)]
        self._hasher = ThreadPoolExecutor(1, "bundle-hash")

    def __enter__(self) -> Copier:
        return self

    def __exit__(self, *error: object) -> None:
        self._hasher.shutdown()

    def copy(self, source: ReadInto, start: int, size: int, write: Callable[[memoryview], object] | None) -> str:
        """Pass `size` bytes of `source`, from `start` on, through `write`; the SHA-256 of what came, in hex. A source
        that ends early has another hash; the caller compares."""
        digest = hashlib.sha256()
        pending: Future[None] | None = None
        done = turn = 0
        while done < size:
            if self._stop is not None and self._stop.is_set():
                raise StoppedError("stopped", "the copy was cancelled")
            buffer = self._buffers[turn][: size - done]
            got = source(buffer, start + done)
            if got == 0:
                break
            if pending is not None:
                pending.result()  # the other buffer is free again
            pending = self._hasher.submit(digest.update, buffer[:got])
            if write is not None:
                write(buffer[:got])
            done += got
            turn = 1 - turn
            self._advance(got)
        if pending is not None:
            pending.result()
        return digest.hexdigest()


class Progress:
    """Progress towards a known total, sent to a `report(done, total)`."""

    def __init__(self, total: int, report: Report) -> None:
        self.total = total
        self._report = report
        self._done = 0

    def advance(self, count: int) -> None:
        self._done += count
        self._report(self._done, self.total)
