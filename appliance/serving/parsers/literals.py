"""Values that are not written as JSON, turned into JSON as they come: Python's literals, and what Gemma writes."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import Final

from appliance.serving.parsers.markers import markers
from appliance.serving.parsers.reader import Ended, Malformed, Reader, Sink, Steps

NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_CONSTANTS: Final = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_CLOSING: Final = {"[": "]", "(": ")", "{": "}"}
_JSON: Final = {"(": "[", ")": "]"}
_ESCAPES: Final = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": "", "\\": "\\",
    "'": "'", '"': '"',
}  # fmt: skip
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}


def escaped(text: str) -> str:
    """As it stands within the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class Literals(ABC):
    """Reads values from `reader`, and passes them to `sink` as JSON, token by token. Depth costs memory, not the
    stack."""

    brackets: str
    """Those that a value may begin with."""
    word: re.Pattern[str]
    """A repeated class: what numbers, constants and bare words are made of."""

    def __init__(self, reader: Reader, sink: Sink) -> None:
        self.reader = reader
        self.sink = sink

    @abstractmethod
    def string(self) -> Steps[bool]:
        """Reads a string, if one comes next, and says so."""

    @abstractmethod
    def key(self) -> Steps[None]:
        """Reads a key of an object."""

    def bare(self, word: str) -> str:
        """The JSON of a word that is neither a number nor a constant."""
        raise Malformed

    def value(self) -> Steps[None]:
        """Raises Malformed at what is no value, and Ended."""
        reader = self.reader
        closing: list[str] = []  # of the brackets that are open
        while True:
            character = yield from reader.skip_space()
            if character and character in self.brackets:
                yield from reader.take()
                closing.append(_CLOSING[character])
                self.sink(_JSON.get(character, character))
                if not (yield from self._close(closing)):
                    yield from self._key(closing)
                    continue
            elif not (yield from self.string()):
                yield from self._word()
            while closing:
                if (yield from self._close(closing)):
                    continue
                yield from reader.expect(",")
                if (yield from self._close(closing)):  # a comma behind the last item
                    continue
                self.sink(", ")
                yield from self._key(closing)
                break
            else:
                return

    def _close(self, closing: list[str]) -> Steps[bool]:
        if (yield from self.reader.skip_space()) != closing[-1]:
            return False
        yield from self.reader.take()
        bracket = closing.pop()
        self.sink(_JSON.get(bracket, bracket))
        return True

    def _key(self, closing: list[str]) -> Steps[None]:
        """What stands before the next value: in an object, its key."""
        if closing[-1] == "}":
            yield from self.key()
            yield from self.reader.skip_space()
            yield from self.reader.expect(":")
            self.sink(": ")

    def _word(self) -> Steps[None]:
        word = (yield from self.reader.read_while(self.word)).strip()
        if not word:
            raise Malformed if (yield from self.reader.peek()) else Ended
        self.sink(_CONSTANTS.get(word) or (word if NUMBER.fullmatch(word) else self.bare(word)))


class PythonLiterals(Literals):
    """Numbers, strings, True, False and None (or JSON's names for them), lists, tuples, and dicts with strings for
    keys."""

    brackets = "[({"
    word = re.compile(r"[A-Za-z0-9_+.-]*")

    def string(self) -> Steps[bool]:
        quote = yield from self.reader.peek()
        if not quote or quote not in "'\"":
            return False
        quote = (yield from self.reader.accept(quote * 3)) or (yield from self.reader.take())
        stops = markers(quote, "\\")
        self.sink('"')
        while stop := (yield from self.reader.read_until(stops, self._sink_escaped)):
            if stop == quote:
                self.sink('"')
                return True
            self._sink_escaped((yield from self._escape()))
        raise Ended

    def key(self) -> Steps[None]:
        if not (yield from self.string()):
            raise Malformed

    def _sink_escaped(self, text: str) -> None:
        self.sink(escaped(text))

    def _escape(self) -> Steps[str]:
        """What an escape means, behind its backslash; it stays as it is where it means nothing."""
        character = yield from self.reader.take()
        if character in _ESCAPES:
            return _ESCAPES[character]
        written = character
        for _ in range(_HEX_DIGITS.get(character, 0)):
            written += yield from self.reader.take()
        try:
            return chr(int(written[1:], 16)).encode().decode()
        except (ValueError, OverflowError):  # no digits, or no character
            return "\\" + written


def python_as_json(text: str) -> str | None:
    """The JSON of a Python literal; None if it is none."""
    reader, parts = Reader(), list[str]()
    reader.feed(text)
    reader.ended = True
    try:
        for _ in PythonLiterals(reader, parts.append).value():
            raise AssertionError("a reader waits for text behind its end")
        for _ in reader.skip_space():
            raise AssertionError("a reader waits for text behind its end")
    except Malformed:
        return None
    return None if reader.unread else "".join(parts)
