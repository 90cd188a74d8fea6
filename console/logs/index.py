"""An engine log as numbered lines, read by range, whatever its size: where every 64th line begins, kept up as the file
grows. What the lines are is found later, as it is needed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from console.logs.classify import HEAD, Classifier, Level
from console.logs.kinds import LineKinds, read_head
from console.logs.line import SHOWN_CHARACTERS, Line, shown
from console.logs.search import LIMIT, Found, Stretch, search

STRIDE = 64
"""Lines between two remembered offsets: what is read in vain at most, against 8 bytes of memory for that many lines."""

BLOCK = 1 << 20
KINDS_S = 0.02
"""How long each refresh may classify lines."""
LOOK_S = 0.3
"""The time limit of a search, which then reports how far it came."""
SLICE_S = 0.05
"""How long one reader may keep the others waiting."""


class LogIndex:
    """The lines of one file that only grows. Methods may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._identity: tuple[int, int] | None = None
        self._seen = 0  # bytes that were looked at
        self._position = 0  # where the first line begins that has no end yet
        self._total = 0
        self._offsets = [0]
        self._kinds = LineKinds()

    @property
    def total(self) -> int:
        """How many complete lines are known."""
        return self._total

    @property
    def processes(self) -> list[str]:
        """Names of the processes that wrote lines, in order of appearance, as far as the lines have been looked at."""
        return self._kinds.processes

    def refresh(self) -> int:
        """Read what was written since the last call; returns the number of complete lines. A file that was replaced or
        truncated is read from the start; a missing one has no lines."""
        with self._lock:
            try:
                file = self.path.open("rb")
            except FileNotFoundError:
                self._reset()
                return 0
            with file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                if identity != self._identity or status.st_size < self._seen:
                    self._reset()
                    self._identity = identity
                self._count(file, status.st_size)
                self._kinds.go_on(file, self._total, time.monotonic() + KINDS_S)
            return self._total

    def _count(self, file: BinaryIO, size: int) -> None:
        file.seek(self._seen)
        total = self._total
        while self._seen < size and (block := file.read(min(BLOCK, size - self._seen))):
            at = 0
            while (end := block.find(b"\n", at)) >= 0:
                at = end + 1
                total += 1
                if total % STRIDE == 0:
                    self._offsets.append(self._seen + at)
            if at:
                self._position = self._seen + at
            self._seen += len(block)
        self._total = total

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
        known = self._kinds.known
        at = 0  # the number of the line that the file stands before; 0: nowhere yet
        guess = Classifier()
        for number in wanted:
            # Lines that nobody has looked at yet are judged by those just before them.
            anchor = max((number - 1) // STRIDE - (number > known), 0)
            if at == 0 or not at <= number or anchor * STRIDE + 1 > at:
                file.seek(self._offsets[anchor])
                at, guess = anchor * STRIDE + 1, Classifier()
            while at < number:
                head, _ = read_head(file)
                if number > known:
                    guess.feed(head)
                at += 1
            raw, cut = _read_line(file)
            at += 1
            kind = self._kinds.of(number) if number <= known else guess.feed(raw[:HEAD].rstrip(b"\n"))
            yield shown(number, raw, level=kind.level, process=kind.process, cut=cut)

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
        self,
        *,
        query: str = "",
        level: Level = Level.OTHER,
        process: str = "",
        after: int = 0,
        limit: int = LIMIT,
        within_s: float = LOOK_S,
    ) -> Found:
        """The lines after line `after` that are at least of `level`, of `process`, and hold `query` (upper and lower
        case alike), as far as one gets in `within_s`."""
        deadline = time.monotonic() + within_s
        allowed: set[int] | None = None
        until = self.total
        if level is not Level.OTHER or process:
            passing, until = self._passing(level, process, after, deadline)
            if not query:
                return Found(passing[:limit], len(passing), max(until, after))
            allowed = set(passing)
        elif not query:
            return Found(list(range(after + 1, min(until, after + limit) + 1)), max(until - after, 0), until)
        numbers: list[int] = []
        in_all = 0
        scanned = after
        for last, found in self._searched(query.casefold(), after, until, deadline):
            hits = found if allowed is None else [number for number in found if number in allowed]
            in_all += len(hits)
            scanned = last
            numbers += hits[: limit - len(numbers)]
        return Found(numbers, in_all, scanned)

    def _passing(self, level: Level, process: str, after: int, deadline: float) -> tuple[list[int], int]:
        """The lines that pass the filter, and up to which line it is known."""
        while True:
            with self._lock:
                total = self._total
                if self._kinds.known < total:
                    try:
                        with self.path.open("rb") as file:
                            self._kinds.go_on(file, total, min(deadline, time.monotonic() + SLICE_S))
                    except FileNotFoundError:
                        return [], 0
                if self._kinds.known >= total or time.monotonic() > deadline:
                    return self._kinds.numbers(level, process, after), self._kinds.known

    def _searched(self, query: str, after: int, until: int, deadline: float) -> Iterator[tuple[int, list[int]]]:
        if after >= until:
            return
        with self._lock:
            offsets, position, total = self._offsets, self._position, self._total
        stretches = (
            Stretch(
                place * STRIDE + 1,
                min((place + 1) * STRIDE, until),
                offsets[place],
                offsets[place + 1] if (place + 1) * STRIDE <= total else position,
            )
            for place in range(after // STRIDE, (until - 1) // STRIDE + 1)
        )
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            yield from search(file, query, stretches, after, deadline)


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
