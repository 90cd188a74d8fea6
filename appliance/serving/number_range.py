"""Where in a request a number stands that is too large to be read, as the decoder does not say it."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

MAX_DIGITS: Final = 4299
"""Of an integer: what Python, and so the decoder, converts, with a sign before it."""
MAX_SHOWN: Final = 60
MAX_PATH: Final = 200


class TooLarge(NamedTuple):
    """A number as the client wrote it."""

    text: str

    @property
    def reason(self) -> str:
        if self.text.lstrip("-").isdigit():
            digits = len(self.text.lstrip("-"))
            return f"an integer of {digits:,} digits is out of range; use one of {MAX_DIGITS:,} or fewer"
        shown = self.text if len(self.text) <= MAX_SHOWN else f"{self.text[: MAX_SHOWN - 3]}..."
        return f"{shown} is out of range; use a number from -1.79e308 to 1.79e308"


def first_too_large(raw: bytes) -> tuple[str, TooLarge] | None:
    """The number and its path, "" where it is the whole text; None where the text is no JSON, or repeats a name and the
    number with it, or has a half of a character in the path. Takes seconds for millions of numbers."""
    try:
        found = _found(json.loads(raw, parse_int=_integer, parse_float=_float))
        if found is not None:
            found[0].encode()
    except (ValueError, RecursionError):
        return None
    return found


def _integer(text: str) -> Any:
    return TooLarge(text) if len(text.lstrip("-")) > MAX_DIGITS else 0


def _float(text: str) -> Any:
    return TooLarge(text) if abs(float(text)) == float("inf") else 0.0


class _Place(NamedTuple):
    """A part, or the end of the path to one."""

    step: str
    outer: _Place | None

    def path(self) -> str:
        steps, place = [], self
        while place.outer is not None:
            steps.append(place.step)
            place = place.outer
        path = "".join(reversed(steps)).removeprefix(".")
        return path if len(path) <= MAX_PATH else f"{path[: MAX_PATH - 3]}..."


def _found(content: Any) -> tuple[str, TooLarge] | None:
    rest = [(_Place("", None), content)]
    while rest:
        place, value = rest.pop()
        if isinstance(value, TooLarge):
            return place.path(), value
        if isinstance(value, dict):
            inner = [(f".{name}", each) for name, each in value.items() if _may_hold(each)]
        else:
            inner = [(f"[{index}]", each) for index, each in enumerate(value) if _may_hold(each)]
        rest += [(_Place(step, place), each) for step, each in reversed(inner)]
    return None


def _may_hold(value: Any) -> bool:
    return isinstance(value, dict | list | TooLarge)
