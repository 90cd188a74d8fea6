"""Reads JSON that comes in pieces: where a value ends, and where it is no longer JSON (RFC 8259)."""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]*')
_DIGITS: Final = "0123456789"

# Each state's row says what state a character leads to. The states of brackets are kept in a stack: a value within
# them is followed by what stands there.
_VALUE: Final = (
    dict.fromkeys(" \t\n\r", "value")
    | dict.fromkeys("123456789", "digits")
    | {"0": "zero", "-": "minus", '"': "string", "{": "open object", "[": "open array", "t": "t", "f": "f", "n": "n"}
)
_ROWS: dict[str, dict[str, str]] = {
    "value": _VALUE,
    "array": _VALUE | dict.fromkeys(" \t\n\r", "array") | {"]": "close"},
    "object": dict.fromkeys(" \t\n\r", "object") | {'"': "key", "}": "close"},
    "member": dict.fromkeys(" \t\n\r", "member") | {'"': "key"},
    "colon": dict.fromkeys(" \t\n\r", "colon") | {":": "value"},
    "in array": dict.fromkeys(" \t\n\r", "in array") | {",": "value", "]": "close"},
    "in object": dict.fromkeys(" \t\n\r", "in object") | {",": "member", "}": "close"},
    "minus": dict.fromkeys("123456789", "digits") | {"0": "zero"},
    "zero": {".": "point", "e": "exponent", "E": "exponent"},
    "digits": dict.fromkeys(_DIGITS, "digits") | {".": "point", "e": "exponent", "E": "exponent"},
    "point": dict.fromkeys(_DIGITS, "fraction"),
    "fraction": dict.fromkeys(_DIGITS, "fraction") | {"e": "exponent", "E": "exponent"},
    "exponent": dict.fromkeys(_DIGITS, "power") | dict.fromkeys("+-", "sign"),
    "sign": dict.fromkeys(_DIGITS, "power"),
    "power": dict.fromkeys(_DIGITS, "power"),
}
for _word in ("true", "false", "null"):
    for _at in range(1, len(_word)):
        _ROWS[_word[:_at]] = {_word[_at]: _word[: _at + 1] if _at + 1 < len(_word) else "end"}
for _kind, _next in (("string", "end"), ("key", "colon")):
    _ROWS[_kind] = {'"': _next, "\\": f"{_kind} escape"}
    _ROWS[f"{_kind} escape"] = dict.fromkeys('"\\/bfnrt', _kind) | {"u": f"{_kind} u3"}
    for _left in (3, 2, 1, 0):
        _after = f"{_kind} u{_left - 1}" if _left else _kind
        _ROWS[f"{_kind} u{_left}"] = dict.fromkeys("0123456789abcdefABCDEF", _after)
_STRINGS: Final = frozenset({"string", "key"})
_NUMBERS: Final = frozenset({"zero", "digits", "fraction", "power"})  # states in which a number may end
_OPEN: Final = {"open object": ("object", "in object"), "open array": ("array", "in array")}


class JsonScanner:
    """One value. `done` once it has ended, `broken` once it is not JSON. Depth costs memory, not the stack."""

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._state = "value"
        self._within: list[str] = []

    def feed(self, text: str, start: int = 0) -> int:
        """Reads on in `text` from `start`. Returns where it stopped: at the end of the text, behind the value, or at
        the character that is not JSON."""
        at, end, state = start, len(text), self._state
        while at < end:
            if state in _STRINGS:
                at = _PLAIN.match(text, at).end()  # type: ignore[union-attr]  # matches everywhere
                if at == end:
                    break
            follows = _ROWS[state].get(text[at])
            if follows is None:
                if state not in _NUMBERS:
                    self.broken = True
                    break
                follows = "end"
            else:
                at += 1
            if follows in _OPEN:
                follows, within = _OPEN[follows]
                self._within.append(within)
            elif follows == "close":
                self._within.pop()
                follows = "end"
            if follows == "end":
                if not self._within:
                    self.done = True
                    break
                follows = self._within[-1]
            state = follows
        self._state = state
        return at

    def finish(self) -> None:
        """Nothing more comes: a number that stands alone ends here."""
        if not self.done and not self._within and self._state in _NUMBERS:
            self.done = True
        self.broken = self.broken or not self.done


def is_json(text: str) -> bool:
    """Whether `text` is one JSON value, with or without white space around it."""
    scanner = JsonScanner()
    stop = scanner.feed(text)
    if stop == len(text):
        scanner.finish()
    return scanner.done and not text[stop:].strip(" \t\n\r")
