"""Text to plain data: the part of YAML that a profile needs, and JSON.

Built from the parser's events rather than with a ready loader, because a profile must not change meaning in silence:
keys given twice, anchors, tags and several documents in one text are refused with their line, and `no`, `1_000`, `012`
or `2024-01-01` stay the text they look like (YAML 1.1 makes a boolean, two numbers and a date of them).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import yaml

from appliance.profile.schema import Problem, ProfileError

MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 16
MAX_DIGITS: Final = 40

_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", re.ASCII)
_WORDS: Final[dict[str, Any]] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip

# libyaml where PyYAML was built with it: ten times faster, same events.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(text: str | bytes) -> dict[str, Any]:
    """The mapping that a YAML or JSON text holds; raises ProfileError with the line of what is wrong."""
    if isinstance(text, bytes):
        if len(text) > MAX_BYTES:
            _refuse_size()
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            _refuse(f"The text is not UTF-8: byte {error.start} is 0x{text[error.start]:02x}.", "Save it as UTF-8.")
    text = text.removeprefix("\ufeff")
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        _refuse_size()
    data = _read_json(text) if re.match(r'\s*\{\s*"', text) else _read_yaml(text)
    if not isinstance(data, dict):
        _refuse(f"This is {_kind(data)}, not a profile.", "Start with a line such as `name: chat`.")
    _check_strings(data)
    return data


def _refuse(message: str, remedy: str, value: Any = None) -> NoReturn:
    raise ProfileError([Problem(field="", value=value, message=message, remedy=remedy)])


def _refuse_size() -> NoReturn:
    _refuse(f"The document has more than {MAX_BYTES:,} bytes.", "A profile is about a page of text.")


def _kind(data: object) -> str:
    kinds = {type(None): "an empty document", list: "a list", str: "plain text", bool: "a boolean"}
    return kinds.get(type(data), "a number")


def _check_strings(data: Any) -> None:
    """A lone surrogate (`"\\ud800"`) is no character: it could be read here and never be written again."""
    if isinstance(data, str):
        try:
            data.encode()
        except UnicodeEncodeError:
            _refuse(
                "The text contains half of a surrogate pair, which is not a character.", "Remove it.", ascii(data)[:80]
            )
    elif isinstance(data, dict):
        for key, value in data.items():
            _check_strings(key)
            _check_strings(value)
    elif isinstance(data, list):
        for value in data:
            _check_strings(value)


# --------------------------------------------------------------------------------------------------------------------
# JSON
# --------------------------------------------------------------------------------------------------------------------


def _read_json(text: str) -> Any:
    def constant(name: str) -> NoReturn:
        _refuse(f"{name} is not a number.", "Give a finite number.", name)

    def number(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            _refuse(f"{digits[:MAX_DIGITS]} is too large.", "Give a smaller number.", digits[:MAX_DIGITS])
        return value

    def integer(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            _refuse(f"A number has {len(digits)} digits.", "Give a smaller number.", digits[:MAX_DIGITS])
        return int(digits)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value in items:
            if key in mapping:
                _refuse(f"The key {key!r} occurs twice in one mapping.", "Keep one of them.", key)
            mapping[key] = value
        return mapping

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number, parse_int=integer)
    except json.JSONDecodeError as error:
        if error.msg == "Expecting property name enclosed in double quotes" or "'" in error.msg:
            return _read_yaml(text)  # `{"a": 1, b: 2}` is YAML's flow style
        _refuse(f"Invalid JSON: {error.msg}, line {error.lineno} column {error.colno}.", "Correct the JSON there.")
    except RecursionError:
        _refuse_depth(None)


# --------------------------------------------------------------------------------------------------------------------
# YAML
# --------------------------------------------------------------------------------------------------------------------


def _read_yaml(text: str) -> Any:
    try:
        events = iter(yaml.parse(text, Loader=_LOADER))
        data = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    _refuse(f"A second YAML document starts {_line(event)}.", "Send one profile at a time.")
                data = _node(next(events), events, 0)
        return data
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1} column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context or "not YAML"
        tab = "\\t" in problem or _tab_at(text, mark)
        _refuse(
            f"Invalid YAML: {problem}{where}.",
            "Indent with spaces, not with tabs." if tab else "Correct that line.",
        )
    except yaml.YAMLError as error:  # a character that YAML does not allow, such as a control character
        _refuse(f"Invalid YAML: {' '.join(str(error).split())}.", "Remove that character.")


def _tab_at(text: str, mark: Any) -> bool:
    lines = text.splitlines()
    return mark is not None and mark.line < len(lines) and "\t" in re.match(r"\s*", lines[mark.line])[0]  # type: ignore[index]


def _line(event: Any) -> str:
    return f"in line {event.start_mark.line + 1}"


def _refuse_depth(event: Any) -> NoReturn:
    where = f" {_line(event)}" if event is not None else ""
    _refuse(f"The document is nested more than {MAX_DEPTH} levels deep{where}.", "A profile has at most three levels.")


def _node(event: Any, events: Iterator[Any], depth: int) -> Any:
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        _refuse(
            f"Anchors and aliases are not supported ({event.anchor!r} {_line(event)}).",
            "Write the value out.",
            event.anchor,
        )
    if event.tag is not None and not event.tag.startswith("tag:yaml.org,2002:str"):
        _refuse(f"Tags are not supported ({event.tag!r} {_line(event)}).", "Remove the tag.", event.tag)
    if depth > MAX_DEPTH:
        _refuse_depth(event)
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_node(event, events, depth + 1))
        return items
    mapping: dict[str, Any] = {}
    first_line: dict[str, int] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key = _node(event, events, depth + 1)
        if not isinstance(key, str):
            shown = "a list or mapping" if isinstance(key, list | dict) else repr(key)
            _refuse(f"The key {_line(event)} is not text: {shown}.", "Put the key in quotes.", key)
        if key in mapping:
            lines = f"in line {first_line[key]} and again in line {event.start_mark.line + 1}"
            _refuse(f"The key {key!r} occurs {lines}.", "Keep one of them.", key)
        first_line[key] = event.start_mark.line + 1
        mapping[key] = _node(next(events), events, depth + 1)
    return mapping


def _scalar(event: Any) -> Any:
    text: str = event.value
    if event.tag is not None or not event.implicit[0]:  # quoted, a block, or tagged as text
        return text
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > MAX_DIGITS and _FLOAT.fullmatch(text):
        _refuse(f"A number {_line(event)} has {len(text):,} digits.", "Give a smaller number.", text[:MAX_DIGITS])
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not re.fullmatch(r"[-+]?0[0-9]+", text):
        value = float(text)
        if math.isfinite(value):
            return value
        _refuse(f"{text} {_line(event)} is too large.", "Give a smaller number.", text)
    if _NOT_FINITE.fullmatch(text):
        _refuse(f"{text} {_line(event)} is not a finite number.", "Give a finite number.", text)
    return text


def reads_as_text(plain: str) -> bool:
    """Whether a plain scalar stays text here. YAML 1.1, by which PyYAML decides what to quote, takes `0E0` for text."""
    return plain not in _WORDS and not _FLOAT.fullmatch(plain) and not _NOT_FINITE.fullmatch(plain)
