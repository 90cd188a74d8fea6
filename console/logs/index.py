"""An engine log as numbered lines, read by range, whatever its size: where every 64th line begins, and of each line its
level and process, kept up as the file grows."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from console.logs import ansi
from console.logs.classify import HEAD, Classifier, Level
from console.logs.line import SHOWN_CHARACTERS, Line, decoded, shown

STRIDE = 64
"""Lines between two remembered offsets: what is read in vain at most, against 8 bytes of memory for that many lines."""

BLOCK = 1 << 20
_MAX_PROCESSES = 255


class LogIndex:
    """The lines of one file that only grows. Methods may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._identity: tuple[int, int] | None = None
        self._position = 0  # where the first line begins that has no end yet
        self._head = b""  # the beginning of that line, as far as its kind is read from it
        self._pending = 0  # how many bytes of it have been seen
        self._offsets: list[int] = []
        self._levels = bytearray()
        self._process_of = bytearray()
        self._processes: list[str] = [""]
        self._classifier = Classifier()

    @property
    def total(self) -> int:
        """How many complete lines are known."""
        return len(self._levels)

    @property
    def processes(self) -> list[str]:
        """Names of the processes that wrote lines, in order of appearance."""
        return [name for name in self._processes if name]

    def refresh(self) -> int:
        """Take in what was written since the last time; the number of complete lines. A file that was replaced or cut
        is read anew; one that is not there has no lines."""
        with self._lock:
            try:
                file = self.path.open("rb")
            except FileNotFoundError:
                self._reset()
                return 0
            with file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                if identity != self._identity or status.st_size < self._position:
                    self._reset()
                    self._identity = identity
                self._read_on(file, status.st_size)
            return self.total

    def _read_on(self, file: BinaryIO, size: int) -> None:
        file.seek(self._position + self._pending)
        while (left := size - file.tell()) > 0 and (block := file.read(min(BLOCK, left))):
            *ends, rest = block.split(b"\n")
            for end in ends:
                self._take(self._head + end[:HEAD], self._pending + len(end))
                self._head, self._pending = b"", 0
            self._head = (self._head + rest[:HEAD])[:HEAD]
            self._pending += len(rest)

    def _take(self, head: bytes, length: int) -> None:
        if len(self._levels) % STRIDE == 0:
            self._offsets.append(self._position)
        kind = self._classifier.feed(head)
        self._levels.append(kind.level)
        self._process_of.append(self._process_number(kind.process))
        self._position += length + 1

    def _process_number(self, name: str) -> int:
        try:
            return self._processes.index(name)
        except ValueError:
            if len(self._processes) > _MAX_PROCESSES:
                return 0
            self._processes.append(name)
            return len(self._processes) - 1

    def lines(self, first: int, count: int) -> list[Line]:
        """Lines `first` .. `first + count - 1`, as many of them as there are."""
        return self.numbered(range(max(first, 1), max(first, 1) + max(count, 0)))

    def numbered(self, numbers: Iterable[int]) -> list[Line]:
        """The lines with these numbers, in rising order."""
        with self._lock:
            wanted = sorted({number for number in numbers if 1 <= number <= self.total})
            if not wanted:
                return []
            try:
                file = self.path.open("rb")
            except FileNotFoundError:
                return []
            with file:
                return list(self._pick(file, wanted))

    def _pick(self, file: BinaryIO, wanted: list[int]) -> Iterator[Line]:
        at = 0  # the number of the line that the file stands before; 0: nowhere yet
        for number in wanted:
            anchor = (number - 1) // STRIDE
            if at == 0 or not at <= number or anchor * STRIDE + 1 > at:
                file.seek(self._offsets[anchor])
                at = anchor * STRIDE + 1
            while at < number:
                _skip_line(file)
                at += 1
            raw, cut = _read_line(file)
            at += 1
            level = Level(self._levels[number - 1])
            yield shown(number, raw, level=level, process=self._processes[self._process_of[number - 1]], cut=cut)

    def unfinished(self) -> Line | None:
        """What has been written after the last line's end: a line that the engine is still writing."""
        with self._lock:
            try:
                with self.path.open("rb") as file:
                    file.seek(self._position)
                    raw, cut = _read_line(file)
            except FileNotFoundError:
                return None
            # With a line end it is a line that the next refresh takes in.
            if not raw or raw.endswith(b"\n"):
                return None
            return shown(self.total + 1, raw, level=Level.OTHER, cut=cut)

    def matching(
        self, *, query: str = "", level: Level = Level.OTHER, process: str = "", after: int = 0, limit: int = 50_000
    ) -> tuple[list[int], int]:
        """Numbers of the lines after line `after` that are at least of `level`, of `process`, and hold `query`
        (upper and lower case alike); at most the first `limit`, and how many there are in all."""
        with self._lock:
            total = self.total
            candidates = self._candidates(level, process, after)
        matches = self._searched(query.casefold(), candidates, after, total) if query else iter(candidates)
        found: list[int] = []
        count = 0
        for number in matches:
            count += 1
            if len(found) < limit:
                found.append(number)
        return found, count

    def _candidates(self, level: Level, process: str, after: int) -> list[int] | range:
        if level is Level.OTHER and not process:
            return range(after + 1, self.total + 1)
        wanted = self._processes.index(process) if process in self._processes else None
        return [
            number
            for number in range(after + 1, self.total + 1)
            if self._levels[number - 1] >= level and (not process or self._process_of[number - 1] == wanted)
        ]

    def _searched(self, query: str, candidates: list[int] | range, after: int, total: int) -> Iterator[int]:
        if not candidates:
            return
        allowed = None if isinstance(candidates, range) else set(candidates)
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offsets[after // STRIDE])
            for _ in range(after % STRIDE):
                _skip_line(file)
            for number in range(after + 1, total + 1):
                raw = file.readline()
                if not raw:
                    return
                if allowed is not None and number not in allowed:
                    continue
                if query in ansi.plain(decoded(raw)).casefold():
                    yield number


def _read_line(file: BinaryIO) -> tuple[bytes, int]:
    """The next line, at most 16 times the characters that are shown of it, and how many of its bytes were passed over.
    Drawn-over text and colours need room that does not show, hence the factor."""
    raw = file.readline(16 * SHOWN_CHARACTERS)
    return raw, (_skip_line(file) if raw and not raw.endswith(b"\n") else 0)


def _skip_line(file: BinaryIO) -> int:
    """Pass over the rest of a line; how many bytes that were."""
    skipped = 0
    while piece := file.readline(BLOCK):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped
