"""Reads an answer that comes in pieces as though it were there whole.

A parser is a generator, which waits (a bare `yield`) where the text that has come ends. So its grammar reads straight
through, and where the pieces begin and end makes no difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Final, TypeAlias, TypeVar

from appliance.serving.parsers.json_scanner import JsonScanner
from appliance.serving.parsers.markers import Markers

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
Sink: TypeAlias = Callable[[str], None]

SPACE: Final = " \t\n\r"
_SPACES: Final = re.compile(f"[{SPACE}]*")


class Malformed(Exception):
    """What comes does not belong to what is being read."""


class Ended(Malformed):
    """The answer ends in the middle of what is being read."""


class Reader:
    """What has come of an answer and is not read yet. What is read without a sink is kept in `record`, until whoever
    reads decides what it was."""

    def __init__(self) -> None:
        self.ended = False
        self.record: list[str] = []
        self.marker_begins_line = False
        """Whether the marker that `read_until` found last begins a line, or the answer."""
        self._text = ""
        self._at = 0
        self._last = ""

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    @property
    def unread(self) -> str:
        """What has come and is not read."""
        return self._text[self._at :]

    def peek(self) -> Steps[str]:
        """The next character; "" at the end of the answer."""
        while self._at == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def take(self) -> Steps[str]:
        """Reads the next character. Raises Ended where there is none."""
        while self._at == len(self._text):
            if self.ended:
                raise Ended
            yield
        character = self._advance(self._at + 1)
        self.record.append(character)
        return character

    def skip_space(self) -> Steps[str]:
        """Returns the character behind it; "" at the end of the answer."""
        while True:
            if self._at < len(self._text):
                character = self._text[self._at]
                if character not in SPACE:
                    return character
                self.record.append(self._advance(_end(_SPACES, self._text, self._at)))
            elif self.ended:
                return ""
            else:
                yield

    def accept(self, *literals: str) -> Steps[str]:
        """Reads that of `literals` which comes next, and returns it; "" where none does. None may begin another."""
        while True:
            open_ = False
            for literal in literals:
                if self._text.startswith(literal, self._at):
                    self.record.append(self._advance(self._at + len(literal)))
                    return literal
                open_ = open_ or self._begins(literal)
            if self.ended or not open_:
                return ""
            yield

    def expect(self, *literals: str) -> Steps[str]:
        """Like `accept`. Raises Malformed or Ended where none of them comes."""
        found = yield from self.accept(*literals)
        if not found:
            raise Ended if self.ended and any(map(self._begins, literals)) else Malformed
        return found

    def read_while(self, characters: re.Pattern[str]) -> Steps[str]:
        """The longest run that the pattern, a repeated class, matches."""
        parts: list[str] = []
        while True:
            part = self._advance(_end(characters, self._text, self._at))
            if part:
                parts.append(part)
                self.record.append(part)
            if self._at < len(self._text) or self.ended:
                return "".join(parts)
            yield

    def read_until(self, stops: Markers, sink: Sink) -> Steps[str]:
        """Passes the text before the first marker to `sink` as it comes, reads the marker and returns it; "" where the
        answer ends first."""
        while True:
            start, end = stops.search(self._text, self._at, self.ended)
            if start > self._at:
                sink(self._advance(start))
            if end > start:
                self.marker_begins_line = self._last in ("", "\n")
                marker = self._advance(end)
                self.record.append(marker)
                return marker
            if self.ended:
                return ""
            yield

    def read_json(self, sink: Sink) -> Steps[None]:
        """Passes one JSON value to `sink` as it comes. Raises Malformed where it stops to be JSON, and Ended."""
        scanner = JsonScanner()
        while True:
            stop = scanner.feed(self._text, self._at)
            if stop > self._at:
                sink(self._advance(stop))
            if self.ended and not scanner.broken:
                scanner.finish()
                if scanner.broken:
                    raise Ended
            if scanner.done:
                return
            if scanner.broken:
                raise Malformed
            yield

    def _advance(self, end: int) -> str:
        part = self._text[self._at : end]
        if part:
            self._at = end
            self._last = part[-1]
        return part

    def _begins(self, literal: str) -> bool:
        """Whether all that has come may be the beginning of `literal`."""
        unread = len(self._text) - self._at
        return unread < len(literal) and self._text.endswith(literal[:unread])


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start
