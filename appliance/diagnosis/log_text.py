"""A log as numbered lines; of a very long one its beginning, the places where something happened, and its end."""

from __future__ import annotations

import codecs
import mmap
from collections.abc import Iterator
from pathlib import Path

import msgspec

from appliance.protocol import EvidenceLine

WHOLE_BYTES = 8 << 20
PART_BYTES = 1 << 20
PLACE_BYTES = 1 << 18
BEFORE_BYTES = 1 << 16
SAMPLE_BYTES = 1 << 16
# Where a failure may begin, and where an engine says that it serves.
MARKS = (
    b"Traceback (most recent call last)",
    b"Fatal Python error",
    b"failed to start",
    b"encountered a fatal error",
    b"hit an exception",
    b"out of memory",
    b"Out of memory",
    b"NCCL WARN",
    b"Segmentation fault",
    b"fatal error",
    b"restart counter is at",
    b"Error: ",
)
READY_MARKS = (b"Application startup complete", b"fired up and ready to roll")
# Docker's own files, and loggers that write objects: the text is in one of these fields.
TEXT_FIELDS = ("log", "message", "msg", "MESSAGE", "text")
LEVEL_FIELDS = ("level", "levelname", "severity")


class NotTextError(ValueError):
    """The file holds no text."""


def number_lines(text: str) -> list[EvidenceLine]:
    """Without the empty ones, which count nevertheless. A line that is a JSON object with a text in it is that text."""
    lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith("{") and line.rstrip().endswith("}"):
            lines += [EvidenceLine(number, part) for part in _unwrapped(line) if part]
        elif line:
            lines.append(EvidenceLine(number, line))
    return lines


def read_log(path: Path) -> list[EvidenceLine]:
    """Empty when there is no such file. Raises NotTextError for one that is no text."""
    try:
        size = path.stat().st_size
        if size <= WHOLE_BYTES:
            return number_lines(_decoded(path.read_bytes()))
    except FileNotFoundError:
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _decoded(data[:SAMPLE_BYTES])
        return _excerpt(data, len(data))


def _decoded(data: bytes) -> str:
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    sample = data[:SAMPLE_BYTES]
    if sample.count(b"\0") * 50 > len(sample):  # a few stand in torn logs
        raise NotTextError("it holds binary data")
    return data.decode(errors="replace")


def _unwrapped(line: str) -> list[str]:
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return [line]
    if isinstance(record, dict):
        for field in TEXT_FIELDS:
            if isinstance(text := record.get(field), str):
                return f"{_level(record)}{text}".split("\n")
    return [line]


def _level(record: dict[str, object]) -> str:
    """As other loggers write it before their words; empty where the record has none."""
    level = next((value for field in LEVEL_FIELDS if isinstance(value := record.get(field), str)), "")
    return f"{level.upper()} " if level.isalpha() else ""


def _excerpt(data: mmap.mmap, size: int) -> list[EvidenceLine]:
    lines: dict[int, EvidenceLine] = {}
    number, counted = 1, 0
    for start, length in sorted(_parts(data, size)):
        begin = data.find(b"\n", start) + 1 if start else 0
        if begin < counted:
            begin = counted
        number += _count_newlines(data, counted, begin)
        counted = begin
        part = data[begin : begin + length].decode(errors="replace").split("\n")
        if begin + length < size and len(part) > 1:
            part.pop()  # cut off in the middle
        for offset, text in enumerate(part):
            lines.setdefault(number + offset, EvidenceLine(number + offset, text))
    return [line for line in lines.values() if line.text]


def _parts(data: mmap.mmap, size: int) -> Iterator[tuple[int, int]]:
    """Offsets and lengths of what to read: the ends, the first place of each mark, and the first after it was ready."""
    yield 0, PART_BYTES
    yield size - PART_BYTES, PART_BYTES
    ready = max(data.rfind(mark) for mark in READY_MARKS)
    if ready >= 0:
        yield max(ready - BEFORE_BYTES, 0), PLACE_BYTES
    for mark in MARKS:
        for after in (0, ready) if ready > 0 else (0,):
            found = data.find(mark, after)
            if found >= 0:
                yield max(found - BEFORE_BYTES, 0), PLACE_BYTES


def _count_newlines(data: mmap.mmap, begin: int, end: int) -> int:
    return sum(data[at : min(at + PART_BYTES, end)].count(b"\n") for at in range(begin, end, PART_BYTES))
