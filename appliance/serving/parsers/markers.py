"""Finds markers in text that comes in pieces."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_NOTHING: Final = "(?!)"  # a pattern that matches nowhere


class Markers:
    """Strings that mean something to a parser, none of which begins another."""

    def __init__(self, *markers: str) -> None:
        assert not any(other != marker and other.startswith(marker) for marker in markers for other in markers)
        whole = "|".join(map(re.escape, markers)) or _NOTHING
        beginnings = "|".join(map(_beginnings, markers)) or _NOTHING
        self._whole = re.compile(f"({whole})")
        self._open = re.compile(f"({whole})|(?:{beginnings})\\Z")

    def search(self, text: str, start: int, ended: bool) -> tuple[int, int]:
        """Where in `text` from `start` the first marker is, as start and end. Where only a beginning of one is, at the
        end of `text`, and more may come: its start, twice. Where there is none: the length of `text`, twice."""
        found = (self._whole if ended else self._open).search(text, start)
        if found is None:
            return len(text), len(text)
        at = found.start()
        return at, at if found[1] is None else found.end()


@lru_cache
def markers(*strings: str) -> Markers:
    """Compiled once for each set of strings."""
    return Markers(*strings)


def _beginnings(marker: str) -> str:
    """A pattern for every beginning of `marker` that is not the whole."""
    pattern = ""
    for character in reversed(marker[:-1]):
        pattern = re.escape(character) + (f"(?:{pattern})?" if pattern else "")
    return pattern or _NOTHING
