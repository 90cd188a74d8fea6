"""Searches a log: as many lines as can be read in a moment, and up to which line that is, so that a search is quick for
a log of any size."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from console.logs import ansi
from console.logs.line import decoded

LIMIT = 50_000
"""Numbers in one answer at most."""


class Found(NamedTuple):
    """`numbers` of lines, in order, perhaps only the first of the `in_all` that there are up to line `scanned`."""

    numbers: list[int]
    in_all: int
    scanned: int


class Stretch(NamedTuple):
    """Lines `first` .. `last` stand at the bytes `start` to before `end`."""

    first: int
    last: int
    start: int
    end: int


LARGEST_READ = 8 << 20
"""Bytes of a stretch that are looked at together; one with longer lines is gone through line by line."""


def search(
    file: BinaryIO, query: str, stretches: Iterator[Stretch], after: int, deadline: float
) -> Iterator[tuple[int, list[int]]]:
    """For each stretch its last line, and the lines after `after` in it that hold `query`, which is in lower case;
    until `deadline` (time.monotonic) has passed, but at least for one."""
    needle = query.encode() if query.isascii() else None
    for stretch in stretches:
        found = _in_stretch(file, query, needle, stretch)
        yield stretch.last, [number for number in found if number > after]
        if time.monotonic() > deadline:
            return


def _in_stretch(file: BinaryIO, query: str, needle: bytes | None, stretch: Stretch) -> Iterator[int]:
    file.seek(stretch.start)
    count = stretch.last - stretch.first + 1
    if stretch.end - stretch.start > LARGEST_READ:
        raws: list[bytes] | Iterator[bytes] = (file.readline() for _ in range(count))
    else:
        block = file.read(stretch.end - stretch.start)
        # Of plain text the bytes read as the line does: only lines of a stretch that has a match are looked at singly.
        if needle is not None and block.isascii() and b"\x1b" not in block and b"\r" not in block:
            low = block.lower()
            if needle in low:
                yield from (stretch.first + place for place, raw in enumerate(low.split(b"\n")) if needle in raw)
            return
        raws = block.split(b"\n")[:count]
    for place, raw in enumerate(raws):
        if query in ansi.plain(decoded(raw)).casefold():
            yield stretch.first + place
