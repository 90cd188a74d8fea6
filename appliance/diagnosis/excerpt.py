"""What a diagnosis needs of a log that is too long to hold: both ends, and every place where something happened.

The whole log is streamed once. Lines that differ only in their digits have the same shape, and only shapes that were
not seen before are searched for words, so that hours of throughput lines cost next to nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import IO

from appliance.diagnosis.error_lines import WORDS
from appliance.diagnosis.log_bytes import PIECE_BYTES
from appliance.diagnosis.own_settings import DUMPS
from appliance.diagnosis.progress import READY, RESTARTS

Line = tuple[int, bytes]

END_BYTES = 1 << 20
# Of the places that were selected, so much of the first and of the last is kept, for each of the two kinds.
KEPT_BYTES = 2 << 20
LONGEST_LINE = 1 << 20
CUT_LINE = 1 << 14
MAX_SEEN_BYTES = 16 << 20
MAX_SHAPES = 20_000
DIGITS = b"0123456789"
BEFORE = 60  # lines
AFTER = 40
AFTER_TRACEBACK = 300
WEAK_BEFORE, WEAK_AFTER = 5, 20
TRACEBACK = b"traceback (most recent call last)"
# With these a process ends, or the kernel, the driver or a container says that one did. They have room of their own,
# which no flood of ordinary errors takes from them.
STRONG = (
    TRACEBACK, b"fatal python error", b"fatal error", b"failed to start", b"hit an exception", b"failed core proc",
    b"died unexpectedly", b"exited unexpectedly", b"out of memory", b"oom-kill", b"oomkilled", b"killed", b"sigkill",
    b"xid", b"nccl warn", b"segmentation fault", b"segfault", b"sigsegv", b"sigbus", b"sigill", b"sigabrt",
    b"core dumped", b"illegal instruction", b"bus error", b"terminate called", b"uncorrectable", b"fallen off the bus",
    b"watchdog", b"error: ", b"exit code", b"panic: ", *RESTARTS, *DUMPS,
)  # fmt: skip


def lines_of(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Whole lines, about a piece at a time. Of one that is longer than LONGEST_LINE only its beginning is kept."""
    rest, cutting = b"", False
    for piece in pieces:
        *whole, last = piece.split(b"\n")
        if whole:
            if not cutting:
                whole[0] = rest + whole[0]
                yield whole
            else:
                yield [rest, *whole[1:]]
            rest, cutting = last, False
        elif not cutting:
            rest += last
        if len(rest) > LONGEST_LINE:
            rest, cutting = rest[:CUT_LINE], True
    if rest:
        yield [rest]


def lines_from_end(file: IO[bytes]) -> Iterator[list[bytes]]:
    """Whole lines, the last first, about a piece at a time; of a long one the beginning, as in `lines_of`."""
    at = file.seek(0, 2)
    if at:
        file.seek(at - 1)
        at -= file.read(1) == b"\n"
    rest = b""
    while at > 0:
        size = min(PIECE_BYTES, at)
        at -= size
        file.seek(at)
        first, *whole = (file.read(size) + rest).split(b"\n")
        if whole:
            yield whole[::-1]
        rest = first if len(first) <= LONGEST_LINE else first[:CUT_LINE]
    yield [rest]


def excerpt(batches: Iterable[list[bytes]]) -> list[Line]:
    """The lines that matter with their numbers, counted from 1, in order."""
    selection = _Selection()
    for lines in batches:
        selection.feed(lines)
    return selection.lines()


class _Kept:
    """The first and the last lines that were selected, KEPT_BYTES of each."""

    def __init__(self) -> None:
        self.first: list[Line] = []
        self.last: deque[Line] = deque()
        self._first_bytes = self._last_bytes = 0
        self._number = 0

    def add(self, line: Line) -> None:
        if line[0] <= self._number:
            return  # it stands near two places
        self._number = line[0]
        if self._first_bytes < KEPT_BYTES:
            self.first.append(line)
            self._first_bytes += len(line[1])
            return
        self.last.append(line)
        self._last_bytes += len(line[1])
        while self._last_bytes > KEPT_BYTES:
            self._last_bytes -= len(self.last.popleft()[1])


class _Selection:
    def __init__(self) -> None:
        self._count = 0
        self._head: list[Line] = []
        self._head_bytes = 0
        self._tail: deque[list[Line]] = deque()
        self._tail_bytes = 0
        self._strong, self._weak = _Kept(), _Kept()
        self._owed_strong = self._owed_weak = 0
        self._before: list[Line] = []
        self._seen: set[bytes] = set()
        self._seen_bytes = 0
        self._telling: dict[bytes, bool] = {}  # shapes that hold a word, and whether a strong one
        self._ready_shapes: set[bytes] = set()
        self._kept_shapes: set[bytes] = set()  # since the engine was last ready
        self._ready: Line | None = None

    def feed(self, lines: list[bytes]) -> None:
        numbered = list(enumerate(lines, start=self._count + 1))
        self._count += len(lines)
        shapes = b"\n".join(lines).lower().translate(None, DIGITS).split(b"\n")
        distinct = set(shapes)
        self._learn(distinct - self._seen)
        ready_at = -1
        if distinct & self._ready_shapes:
            ready_at = max((at for at, line in enumerate(lines) if _is_ready(line.lower())), default=-1)
            self._ready = self._ready if ready_at < 0 else numbered[ready_at]
        self._select(shapes, numbered, ready_at)
        if self._head_bytes < END_BYTES:
            for line in numbered:
                self._head.append(line)
                self._head_bytes += len(line[1])
                if self._head_bytes > END_BYTES:
                    break
        self._tail.append(numbered)
        self._tail_bytes += sum(map(len, lines))
        while len(self._tail) > 1 and self._tail_bytes - sum(len(text) for _, text in self._tail[0]) > END_BYTES:
            self._tail_bytes -= sum(len(text) for _, text in self._tail.popleft())
        self._before = numbered[-BEFORE:]

    def lines(self) -> list[Line]:
        kept = dict(self._head)
        for part in (self._strong, self._weak):
            kept.update(part.first)
            kept.update(part.last)
        if self._ready is not None:
            kept.update([self._ready])
        for batch in self._tail:
            kept.update(batch)
        return sorted(kept.items())

    def _learn(self, fresh: set[bytes]) -> None:
        joined = b"\n".join(fresh)
        self._seen_bytes += len(joined)
        if self._seen_bytes > MAX_SEEN_BYTES:
            self._seen.clear()
            self._seen_bytes = len(joined)
        if len(self._telling) > MAX_SHAPES:
            self._telling.clear()
            self._kept_shapes.clear()
        self._seen |= fresh
        strong = [word for word in STRONG if word in joined]
        words = [word for word in WORDS if word in joined]
        ready = [bare for word in READY if (bare := word.translate(None, DIGITS)) in joined]
        if not (strong or words or ready):
            return
        for shape in fresh:
            if any(word in shape for word in strong):
                self._telling[shape] = True
            elif any(word in shape for word in words):
                self._telling[shape] = False
            if ready and any(word in shape for word in ready):
                self._ready_shapes.add(shape)

    def _select(self, shapes: list[bytes], numbered: list[Line], ready_at: int) -> None:
        """The first line of each telling shape, and again the first after the engine was ready, with lines around."""
        told = self._telling.keys() & set(shapes)
        again = self._kept_shapes
        found: list[tuple[int, bool]] = []
        if ready_at >= 0 or not told <= again:
            for at, shape in enumerate(shapes):
                if at == ready_at:
                    again.clear()
                if shape in told and shape not in again:
                    again.add(shape)
                    found.append((at, self._telling[shape]))
        lines = [*self._before, *numbered]
        shift = len(self._before)
        self._owed_strong = _keep(
            self._strong,
            lines,
            shift,
            self._owed_strong,
            [
                (at + shift, BEFORE, AFTER_TRACEBACK if TRACEBACK in shapes[at] else AFTER)
                for at, strong in found
                if strong
            ],
        )
        self._owed_weak = _keep(
            self._weak,
            lines,
            shift,
            self._owed_weak,
            [(at + shift, WEAK_BEFORE, WEAK_AFTER) for at, strong in found if not strong],
        )


def _is_ready(line: bytes) -> bool:
    return any(word in line for word in READY)


def _keep(kept: _Kept, lines: list[Line], shift: int, owed: int, places: list[tuple[int, int, int]]) -> int:
    """Keeps `owed` lines from `shift` on, and those around each place (index, before, after); how many lines after the
    end of `lines` are still wanted."""
    until = shift + owed
    for line in lines[shift:until]:
        kept.add(line)
    for at, before, after in places:
        for line in lines[max(at - before, 0) : at + after + 1]:
            kept.add(line)
        until = max(until, at + after + 1)
    return max(until - len(lines), 0)
