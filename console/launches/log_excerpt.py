"""A launch's log for an export: complete, or, if it is too large, its beginning, the lines around the first error, and
its end; each gap says which lines it replaces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

WHOLE_BYTES = 50 << 20
BEGINNING_BYTES = 16 << 20
AROUND_BYTES = 4 << 20
END_BYTES = 16 << 20

BLOCK = 1 << 20
LINE_BYTES = 256 * 1024
"""A longer line is given in pieces."""

_ERROR = re.compile(
    rb"Traceback \(most recent call last\)|\b(?:ERROR|CRITICAL|FATAL)\b"
    rb"|\b[A-Z]\w{0,80}(?:Error|Exception): |Segmentation fault"
)


class Span(NamedTuple):
    """Bytes `start` to before `end`, at the beginnings of lines."""

    start: int
    end: int


def excerpt(path: Path, *, evidence_line: int | None = None) -> Iterator[str]:
    """The lines to send, with line ends. `evidence_line` is the line of the cause, if known; otherwise the first line
    that looks like an error. The file may grow meanwhile: only its current content is used."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        size = path.stat().st_size
        spans = [Span(0, size)] if size <= WHOLE_BYTES else _spans(file, size, evidence_line)
        line, at = 1, 0
        for span in spans:
            if span.start > at:
                skipped = _count_lines(file, at, span.start)
                yield f"[Ingot left out lines {line:,} to {line + skipped - 1:,}: {span.start - at:,} bytes]\n"
                line += skipped
            for text in _lines(file, span):
                line += text.endswith("\n")
                yield text
            at = span.end


def is_whole(path: Path) -> bool:
    try:
        return path.stat().st_size <= WHOLE_BYTES
    except OSError:
        return True


def _spans(file: BinaryIO, size: int, evidence_line: int | None) -> list[Span]:
    """In order, those that touch made one."""
    error = _offset_of_line(file, size, evidence_line) if evidence_line else _offset_of_error(file, size)
    wanted = [Span(0, BEGINNING_BYTES), Span(size - END_BYTES, size)]
    if error is not None:
        wanted.append(Span(max(error - AROUND_BYTES, 0), min(error + AROUND_BYTES, size)))
    spans: list[Span] = []
    for span in sorted(wanted):
        span = Span(_line_start(file, span.start), _line_start(file, span.end) if span.end < size else size)
        if spans and span.start <= spans[-1].end:
            spans[-1] = Span(spans[-1].start, max(spans[-1].end, span.end))
        else:
            spans.append(span)
    return spans


def _blocks(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of each."""
    file.seek(start)
    while start < end and (block := file.read(min(BLOCK, end - start))):
        yield start, block
        start += len(block)


def _count_lines(file: BinaryIO, start: int, end: int) -> int:
    return sum(block.count(b"\n") for _, block in _blocks(file, start, end))


def _offset_of_line(file: BinaryIO, size: int, line: int) -> int | None:
    left = line - 1
    for offset, block in _blocks(file, 0, size):
        found = block.count(b"\n")
        if found >= left:
            place = 0
            for _ in range(left):
                place = block.index(b"\n", place) + 1
            return offset + place
        left -= found
    return None


def _offset_of_error(file: BinaryIO, size: int) -> int | None:
    before = b""
    for offset, block in _blocks(file, 0, size):
        if (match := _ERROR.search(before + block)) is not None:
            return offset - len(before) + match.start()
        before = block[-100:]
    return None


def _line_start(file: BinaryIO, offset: int) -> int:
    """Of the line after the one that `offset` is in; a line begins at 0."""
    if offset <= 0:
        return 0
    file.seek(offset)
    while piece := file.readline(BLOCK):
        if piece.endswith(b"\n"):
            break
    return file.tell()


def _lines(file: BinaryIO, span: Span) -> Iterator[str]:
    file.seek(span.start)
    left = span.end - span.start
    while left > 0 and (raw := file.readline(min(LINE_BYTES, left))):
        left -= len(raw)
        yield raw.decode("utf-8", "replace")
