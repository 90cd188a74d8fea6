"""The end of a log file, and what is written to it from then on, as raw numbered lines; for `ingot logs`, which wants
no index of what came before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

BLOCK = 1 << 20


class Tail:
    """Reads a file that grows, from its last `lines` lines on (None: from its beginning)."""

    def __init__(self, path: Path, lines: int | None) -> None:
        self.path = path
        self._offset, self._number = (0, 1) if lines is None else _start_of_last(path, lines)

    def new_lines(self) -> Iterator[tuple[int, bytes]]:
        """Number and content of each line that has been finished since the last time."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            if self.path.stat().st_size < self._offset:  # replaced by a shorter file
                self._offset, self._number = 0, 1
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                self._number += 1
                yield self._number - 1, line[:-1]

    def unfinished(self) -> tuple[int, bytes] | None:
        """The last line if it has no end yet. It counts as sent."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                rest = file.read()
        except FileNotFoundError:
            return None
        if not rest or b"\n" in rest:
            return None
        self._offset += len(rest)
        return self._number, rest


def _start_of_last(path: Path, lines: int) -> tuple[int, int]:
    """Offset and number of the line that `lines` finished lines follow to the file's end."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return 0, 1
    with file:
        total = 0
        while block := file.read(BLOCK):
            total += block.count(b"\n")
        size = file.tell()
        wanted = min(lines, total)
        if wanted == total:
            return 0, 1
        # Backwards to the line end before the first wanted line: the wanted+1st one from the end.
        end, left = size, wanted + 1
        while True:
            begin = max(end - BLOCK, 0)
            file.seek(begin)
            block = file.read(end - begin)
            if (found := block.count(b"\n")) >= left:
                break
            left -= found
            end = begin
        cut = len(block)
        for _ in range(left):
            cut = block.rindex(b"\n", 0, cut)
        return begin + cut + 1, total - wanted + 1
