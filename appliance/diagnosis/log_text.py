"""A log as numbered lines; of a very long one its beginning, the places where something happened, and its end."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from operator import itemgetter
from pathlib import Path

from appliance.diagnosis.excerpt import excerpt, lines_of
from appliance.diagnosis.log_bytes import text_pieces
from appliance.diagnosis.unwrapping import unwrapped
from appliance.diagnosis.wrapping import oldest_first, rejoined
from appliance.protocol import EvidenceLine

WHOLE_BYTES = 8 << 20


def number_lines(text: str) -> list[EvidenceLine]:
    """Without the empty ones, which count nevertheless. A record in JSON is the text in it, see `unwrapped`."""
    return _numbered(oldest_first(list(rejoined(list(enumerate(text.split("\n"), start=1))))))


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
    return [EvidenceLine(number, text) for number, text in sorted(unwrapped(lines), key=itemgetter(0))]
