"""A thread that copies an engine's output to `engine.log`, and hands it on in batches.

The file has every line. The queue for the live view is bounded: in a flood its oldest lines are dropped, which shows as
a gap in the line numbers.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

MAX_LINE_BYTES = 16 * 1024
MAX_QUEUED_LINES = 500
READ_BYTES = 64 * 1024


class LineSplitter:
    """Splits bytes into lines of text. Invalid UTF-8 is replaced; of a line rewritten with carriage returns the last
    version is kept; a line beyond MAX_LINE_BYTES is cut, with a note of how much is missing."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self._cut = 0

    def feed(self, data: bytes) -> list[str]:
        *whole, rest = data.split(b"\n")
        lines = []
        for piece in whole:
            self._add(piece)
            lines.append(self._take())
        self._add(rest)
        return lines

    def finish(self) -> list[str]:
        """The last line, if it has no newline."""
        return [self._take()] if self._partial else []

    @property
    def rewritten(self) -> str:
        """The current version of an unfinished line that is rewritten, such as a progress bar; otherwise empty."""
        if b"\r" not in self._partial:
            return ""
        return bytes(self._partial).rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")

    def _add(self, piece: bytes) -> None:
        room = MAX_LINE_BYTES - len(self._partial)
        self._partial += piece[:room]
        self._cut += max(len(piece) - room, 0)

    def _take(self) -> str:
        text = bytes(self._partial).rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace").replace("\0", "\ufffd")
        if self._cut:
            text += f" ... [{self._cut:,} more bytes cut]"
        self._partial.clear()
        self._cut = 0
        return text


class LogCapture:
    """`observe` is called in the reading thread with the number of a batch's first line and its lines; `glimpse` with a
    progress bar that is still being rewritten. A callback that raises is reported and not called again."""

    def __init__(
        self,
        source: IO[bytes],
        path: Path,
        observe: Callable[[int, list[str]], None] | None = None,
        glimpse: Callable[[str], None] | None = None,
    ) -> None:
        self._source = source
        self._path = path
        self._observe = observe
        self._glimpse = glimpse
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._failed_callbacks: list[Callable[..., None]] = []
        self._queue: deque[str] = deque(maxlen=MAX_QUEUED_LINES)
        self._count = 0
        self._reported = False
        self._thread = threading.Thread(target=self._run, name="engine-log", daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        """Lines so far."""
        return self._count

    def take(self) -> tuple[int, tuple[str, ...]]:
        """The lines since the last call, and the number of the first of them, counted from 1."""
        with self._lock:
            lines = tuple(self._queue)
            self._queue.clear()
            return self._count - len(lines) + 1, lines

    def drained(self, timeout_s: float) -> bool:
        """Wait until all output is written; False if a process still holds the pipe open after `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def add(self, lines: list[str]) -> None:
        """Append lines of our own, between those of an engine that still prints."""
        with contextlib.ExitStack() as stack:
            file: IO[bytes] | None = None
            if lines:
                try:
                    file = stack.enter_context(self._path.open("ab", buffering=0))
                except OSError as error:
                    self._report(error)
            self._keep(file, lines)

    def _run(self) -> None:
        splitter = LineSplitter()
        with contextlib.ExitStack() as stack:
            file: IO[bytes] | None = None
            try:
                file = stack.enter_context(self._path.open("ab", buffering=0))
            except OSError as error:
                self._report(error)
            # Read on even if the disk is full: an engine must never block on its own output.
            while data := os.read(self._source.fileno(), READ_BYTES):
                self._keep(file, splitter.feed(data))
                if bar := splitter.rewritten:
                    self._call(self._glimpse, bar)
            self._keep(file, splitter.finish())

    def _keep(self, file: IO[bytes] | None, lines: list[str]) -> None:
        if not lines:
            return
        with self._writing:  # the file has the lines in the order of their numbers
            if file is not None:
                try:
                    file.write(("\n".join(lines) + "\n").encode())
                except OSError as error:
                    self._report(error)
            with self._lock:
                first = self._count + 1
                self._count += len(lines)
                self._queue.extend(lines)
            self._call(self._observe, first, lines)

    def _call(self, callback: Callable[..., None] | None, *arguments: object) -> None:
        """An error in a callback must not stop the reading: the engine would block on a full pipe."""
        if callback is None or callback in self._failed_callbacks:
            return
        try:
            callback(*arguments)
        except Exception:  # noqa: BLE001  whatever it is, reading goes on
            self._failed_callbacks.append(callback)
            traceback.print_exc()

    def _report(self, error: OSError) -> None:
        if not self._reported:
            print(f"ingot: cannot write {self._path}, so it is incomplete: {error.strerror}", file=sys.stderr)
        self._reported = True
