"""A log as numbered lines; of a very long one its beginning, the place of its first exception, and its end."""

from __future__ import annotations

import mmap
from pathlib import Path

from appliance.protocol import EvidenceLine

WHOLE_BYTES = 8 << 20
PART_BYTES = 1 << 20
MARKS = (b"Traceback (most recent call last)", b"Fatal Python error")


def number_lines(text: str) -> list[EvidenceLine]:
    return [EvidenceLine(number, line) for number, line in enumerate(text.split("\n"), start=1) if line]


def read_log(path: Path) -> list[EvidenceLine]:
    """Empty when there is no such file."""
    try:
        size = path.stat().st_size
        if size <= WHOLE_BYTES:
            return number_lines(path.read_bytes().decode(errors="replace"))
    except FileNotFoundError:
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _excerpt(data, len(data))


def _excerpt(data: mmap.mmap, size: int) -> list[EvidenceLine]:
    starts = {0, size - PART_BYTES}
    starts |= {max(found - PART_BYTES // 8, 0) for mark in MARKS if (found := data.find(mark)) >= 0}
    lines: dict[int, EvidenceLine] = {}
    number, counted = 1, 0
    for start in sorted(starts):
        begin = data.find(b"\n", start) + 1 if start else 0
        if begin < counted:
            begin = counted
        number += _count_newlines(data, counted, begin)
        counted = begin
        for offset, text in enumerate(data[begin : begin + PART_BYTES].decode(errors="replace").split("\n")):
            lines.setdefault(number + offset, EvidenceLine(number + offset, text))
    return [line for line in lines.values() if line.text]


def _count_newlines(data: mmap.mmap, begin: int, end: int) -> int:
    return sum(data[at : min(at + PART_BYTES, end)].count(b"\n") for at in range(begin, end, PART_BYTES))
