"""A log as numbered lines; of a very long one its beginning, the places where something happened, and its end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import itemgetter
from pathlib import Path

from appliance.diagnosis.excerpt import excerpt, lines_from_end, lines_of
from appliance.diagnosis.log_bytes import text_pieces
from appliance.diagnosis.unwrapping import unwrapped
from appliance.diagnosis.wrapping import oldest_first, rejoined, runs_backwards
from appliance.protocol import EvidenceLine

WHOLE_BYTES = 8 << 20
SAMPLE_BYTES = 1 << 20


def number_lines(text: str) -> list[EvidenceLine]:
    """Without the empty ones, which count nevertheless. A record in JSON is the text in it, see `unwrapped`."""
    text = text.replace("\r\n", "\n")
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
                lines = excerpt(_batches(held, chain(held, pieces)))
                return _numbered((number, line.decode(errors="replace")) for number, line in lines)
    except FileNotFoundError:
        return []
    return number_lines(b"".join(held).decode(errors="replace"))


def _batches(head: list[bytes], pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines of all pieces, the oldest first; `head` is the first of them."""
    sample = b"".join(head)[:SAMPLE_BYTES].decode(errors="replace").split("\n")
    if not runs_backwards(list(enumerate(sample))):
        yield from lines_of(pieces)
        return
    with tempfile.TemporaryFile(prefix="ingot-diagnose-") as file:
        for piece in pieces:
            file.write(piece)
        yield from lines_from_end(file)


def _numbered(lines: Iterable[tuple[int, str]]) -> list[EvidenceLine]:
    return [EvidenceLine(number, text) for number, text in sorted(unwrapped(lines), key=itemgetter(0))]
