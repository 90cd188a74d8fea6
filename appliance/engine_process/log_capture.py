"""Reads what an engine prints, in a thread of its own, into `engine.log`, and hands it on in batches.

The file holds every line. What is handed on for the live view is limited: in a flood the oldest waiting lines are left
out, which shows as a gap in the line numbers, and a reader finds them in the file.
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
MAX_WAITING_LINES = 500
READ_BYTES = 64 * 1024


class LineSplitter:
    """Bytes to lines of text: invalid UTF-8 replaced, a carriage return taken as a terminal would show it (the last
    version of a progress bar stays), and lines beyond MAX_LINE_BYTES cut with a note of how much."""

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
        """What was left without an end of line."""
        return [self._take()] if self._partial else []

    @property
    def rewritten(self) -> str:
        """A progress bar as it stands now, in a line that has not ended; empty where the line is an ordinary one."""
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
    """`observe` is called with every batch of lines and the number of its first, in the thread that reads them;
    `glimpse` with a progress bar that is still being rewritten."""

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
        self._deaf: list[Callable[..., None]] = []
        self._waiting: deque[str] = deque(maxlen=MAX_WAITING_LINES)
        self._count = 0
        self._complained = False
        self._thread = threading.Thread(target=self._run, name="engine-log", daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        """Lines so far."""
        return self._count

    def take(self) -> tuple[int, tuple[str, ...]]:
        """The lines since the last call, and the number of the first of them, counted from 1."""
        with self._lock:
            lines = tuple(self._waiting)
            self._waiting.clear()
            return self._count - len(lines) + 1, lines

    def drained(self, timeout_s: float) -> bool:
        """Wait until everything that was printed has been written; false when a process still holds the pipe."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def add(self, lines: list[str]) -> None:
        """More lines for the log, of our own; between two of the engine's where it still prints."""
        with contextlib.ExitStack() as stack:
            file: IO[bytes] | None = None
            if lines:
                try:
                    file = stack.enter_context(self._path.open("ab", buffering=0))
                except OSError as error:
                    self._complain(error)
            self._keep(file, lines)

    def _run(self) -> None:
        splitter = LineSplitter()
        with contextlib.ExitStack() as stack:
            file: IO[bytes] | None = None
            try:
                file = stack.enter_context(self._path.open("ab", buffering=0))
            except OSError as error:
                self._complain(error)
            # The pipe is always read, even when the disk is full: an engine must never block on its own log.
            while data := os.read(self._source.fileno(), READ_BYTES):
                self._keep(file, splitter.feed(data))
                if bar := splitter.rewritten:
                    self._tell(self._glimpse, bar)
            self._keep(file, splitter.finish())

    def _keep(self, file: IO[bytes] | None, lines: list[str]) -> None:
        if not lines:
            return
        with self._writing:  # so that lines stand in the file as they are counted
            if file is not None:
                try:
                    file.write(("\n".join(lines) + "\n").encode())
                except OSError as error:
                    self._complain(error)
            with self._lock:
                first = self._count + 1
                self._count += len(lines)
                self._waiting.extend(lines)
            self._tell(self._observe, first, lines)

    def _tell(self, listener: Callable[..., None] | None, *what: object) -> None:
        """A fault of who listens must not stop the reading: the engine would block on its log."""
        if listener is None or listener in self._deaf:
            return
        try:
            listener(*what)
        except Exception:  # noqa: BLE001  any error is reported once
            self._deaf.append(listener)
            traceback.print_exc()

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            print(f"ingot: cannot write {self._path}, so it is incomplete: {error.strerror}", file=sys.stderr)
        self._complained = True
