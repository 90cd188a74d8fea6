"""Which repetitions of a regular expression have no bound: what text of a client or an engine can make slow.

An open repetition may stand only at the end of a pattern, where nothing that follows can make it give back what it
took. Anywhere else it costs the square of the text's length, or more.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
# How many ways one place of the text may be tried with bounded repetitions one after the other.
MOST_WAYS = 200_000


def open_repetitions(pattern: re.Pattern[Any]) -> int:
    """How many repetitions without a bound stand before the end."""
    return _open(list(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)), last=True)


def _open(items: list[Any], *, last: bool) -> int:
    count = 0
    for place, (code, value) in enumerate(items):
        at_end = last and place == len(items) - 1
        if code in REPEATS:
            _, most, inner = value
            count += most is codes.MAXREPEAT and not at_end
            count += _open(list(inner), last=False)
        elif code is codes.SUBPATTERN:
            count += _open(list(value[3]), last=at_end)
        elif code is codes.BRANCH:
            count += sum(_open(list(branch), last=at_end) for branch in value[1])
        elif code is codes.ATOMIC_GROUP:
            count += _open(list(value), last=at_end)
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            count += _open(list(value[1]), last=True)
        elif code is codes.GROUPREF_EXISTS:
            count += sum(_open(list(branch), last=at_end) for branch in value[1:] if branch)
    return count


def patterns_of(package: str) -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Every compiled pattern that a module of the package holds, in whatever it holds it, with its place."""
    root = importlib.import_module(package)
    names = [package]
    if hasattr(root, "__path__"):
        names += [info.name for info in pkgutil.walk_packages(root.__path__, f"{package}.")]
    seen: set[int] = set()
    for name in names:
        if name.endswith("__main__"):
            continue
        module = importlib.import_module(name)
        for attribute, value in vars(module).items():
            for pattern in _within(value, 0):
                if id(pattern) not in seen:
                    seen.add(id(pattern))
                    yield f"{name}.{attribute}", pattern


def _within(value: Any, depth: int) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 4 and isinstance(value, tuple | list | frozenset):
        for each in value:
            yield from _within(each, depth + 1)
    elif depth < 4 and isinstance(value, dict):
        for each in value.values():
            yield from _within(each, depth + 1)
    elif depth < 4 and not isinstance(value, type | ModuleType):
        for name in _fields(value):
            yield from _within(getattr(value, name, None), depth + 1)


def _fields(value: Any) -> tuple[str, ...]:
    names = getattr(value, "__struct_fields__", ()) or tuple(getattr(value, "__dataclass_fields__", ()))
    return (*names, *(name for name in ("compiled", "compiled_details", "compiled_where") if hasattr(value, name)))


def phrases(pattern: re.Pattern[Any]) -> list[str]:
    """The runs of literal characters in a pattern: what a text needs to keep it busy."""
    found: list[str] = []
    _collect(list(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)), found)
    return list(dict.fromkeys(phrase for phrase in found if phrase.strip()))


def _collect(items: list[Any], found: list[str]) -> None:
    run = ""
    for code, value in items:
        if code is codes.LITERAL:
            run += chr(value)
            continue
        if code is codes.IN and run:
            run += "7"
            continue
        found.append(run)
        run = ""
        if code is codes.BRANCH:
            for branch in value[1]:
                _collect(list(branch), found)
        elif code is codes.SUBPATTERN:
            _collect(list(value[3]), found)
        elif code in REPEATS:
            _collect(list(value[2]), found)
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            _collect(list(value[1]), found)
    found.append(run)
