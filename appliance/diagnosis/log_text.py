"""A log as numbered lines; of a very long one its beginning, the places where something happened, and its end."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import msgspec

from appliance.diagnosis.excerpt import excerpt, lines_of
from appliance.diagnosis.log_bytes import text_pieces
from appliance.protocol import EvidenceLine

WHOLE_BYTES = 8 << 20
# Docker's own files, and loggers that write objects: the text is in one of these fields.
TEXT_FIELDS = ("log", "message", "msg", "MESSAGE", "text")
LEVEL_FIELDS = ("level", "levelname", "severity")


def number_lines(text: str) -> list[EvidenceLine]:
    """Without the empty ones, which count nevertheless. A line that is a JSON object with a text in it is that text."""
    return _numbered(enumerate(text.split("\n"), start=1))


def read_log(path: Path) -> list[EvidenceLine]:
    """Empty if there is no such file. Raises NotTextError for one that is not text. Memory is bounded: of more than
    WHOLE_BYTES an excerpt is read."""
    pieces = text_pieces(path)
    held: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            held.append(piece)
            size += len(piece)
            if size > WHOLE_BYTES:
                lines = excerpt(lines_of(chain(held, pieces)))
                return _numbered((number, line.decode(errors="replace")) for number, line in lines)
    except FileNotFoundError:
        return []
    return number_lines(b"".join(held).decode(errors="replace"))


def _numbered(lines: Iterable[tuple[int, str]]) -> list[EvidenceLine]:
    found = []
    for number, line in lines:
        if line.startswith("{") and line.rstrip().endswith("}"):
            found += [EvidenceLine(number, part) for part in _unwrapped(line) if part]
        elif line:
            found.append(EvidenceLine(number, line))
    return found


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
