"""Log lines as their writers meant them, out of what carried them: records in JSON or in logfmt, and lines that a
container runtime cut into parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

# Docker's own files, journals, and loggers that write objects: the text is in one of these fields.
TEXT_FIELDS = ("log", "message", "msg", "MESSAGE", "text", "event", "body", "M", "fields.message")
LEVEL_FIELDS = ("level", "levelname", "severity", "log.level", "severityText", "L")
# bunyan's and pino's levels, from these numbers on.
NUMBERED = ((60, "FATAL"), (50, "ERROR"), (40, "WARNING"), (30, "INFO"), (0, "DEBUG"))
# An error's own words, beside those of the record.
ERROR_FIELDS = ("error", "err")
# Where loggers put a traceback, often beside a message without it.
TRACEBACK_FIELDS = (
    "exc_info", "exception", "exc_text", "traceback", "stack_trace", "stacktrace", "error.stack_trace", "error.stack",
    "errorVerbose",
)  # fmt: skip
# Where loggers put an exception in parts, and how they name its type, its message and its frames.
EXCEPTION_FIELDS = ("exc_info", "exception", "error", "err", "attributes")
PARTS = (
    ("type", "exc_type", "class", "exception.type", "name"),
    ("message", "value", "exc_value", "exception.message"),
    ("stack_trace", "stacktrace", "stack", "traceback", "exception.stacktrace"),
)
CLASS = re.compile(r"<class '([\w.]{1,200})'>$")
HEADING = "Traceback (most recent call last):"
MAX_PRETTY = 300  # lines of one record
CRI = re.compile(r"(?P<head>\d{4}-\d\d-\d\dT[\d:.]{8,20}\S{0,6} (?P<stream>stdout|stderr) )(?P<tag>[FP]) (?P<rest>.*)")
MAX_JOINED = 1 << 20
DOCKER_CUTS_AT = 16_000  # bytes, and a little more
MAX_DEPTH = 3
# A record of key=value pairs, as Go's loggers write it, behind whatever carried it.
LOGFMT = re.compile(r"(?<![^ \t])(?:time|ts|t|level|lvl)=(?=\S)")
PAIR = re.compile(r"(?P<key>[A-Za-z_][\w.-]{0,60})=(?P<value>\"(?:[^\"\\]|\\.){0,8000}\"|[^\s\"]{0,2000})(?:\s|$)")
MAX_PAIRS = 40
SHORT_LEVELS = {"WARN": "WARNING", "EROR": "ERROR", "CRIT": "CRITICAL"}
# How a collector of OpenTelemetry batches its records.
BATCHES = ("resourceLogs", "scopeLogs", "logRecords")

Line = tuple[int, str]


class _Piece(NamedTuple):
    """Of a line that may be cut into several: `head` stands before it, and `ends` says whether it is the last."""

    stream: str
    head: str
    text: str
    ends: bool


def unwrapped(lines: Iterable[Line]) -> Iterator[Line]:
    """Without the empty ones. Lines of one record have the same number. One that was cut comes with its last part, and
    has its first one's number."""
    open_: dict[str, tuple[int, str]] = {}
    for number, line in _compact(lines):
        if line[:1] != "{" and line[:2] != "20":  # most: neither a record nor a runtime's time
            if line:
                yield from ((number, part) for part in _of_pairs(line))
            continue
        piece = _cri_piece(line) or (_docker_piece(line) if open_ or len(line) > DOCKER_CUTS_AT else None)
        if piece is None:
            yield from ((number, part) for part in _told(line))
            continue
        first, before = open_.pop(piece.stream, (number, ""))
        text = before + piece.text
        if piece.ends or len(text) > MAX_JOINED:
            yield from ((first, piece.head + part) for part in _told(text))
        else:
            open_[piece.stream] = (first, text)
    for number, text in open_.values():
        yield from ((number, part) for part in _told(text))


def _told(text: str) -> Iterator[str]:
    """The lines of a record, whichever way it is written; any other text as it is. None of them is empty."""
    yield from (told for part in _parts(text) if part for told in _of_pairs(part))


def _compact(lines: Iterable[Line]) -> Iterator[Line]:
    """Records that were written over several lines, as one; other lines as they are."""
    held: list[Line] = []
    for number, line in lines:
        if not held and line.rstrip() != "{":
            yield number, line
            continue
        held.append((number, line))
        if line.rstrip() == "}":
            whole = "\n".join(text for _, text in held)
            yield from [(held[0][0], whole)] if _tells(_record(whole)) else held
            held = []
        elif len(held) == MAX_PRETTY:
            yield from held
            held = []
    yield from held


def _tells(record: dict[str, Any] | None) -> bool:
    return record is not None and any(_within(record, field) is not None for field in (*TEXT_FIELDS, *TRACEBACK_FIELDS))


def _cri_piece(line: str) -> _Piece | None:
    found = CRI.match(line)
    if found is None:
        return None
    return _Piece(found["stream"], f"{found['head']}F ", found["rest"], found["tag"] == "F")


def _docker_piece(line: str) -> _Piece | None:
    record = _record(line)
    text, stream = (record.get("log"), record.get("stream")) if record is not None else (None, None)
    if not isinstance(text, str) or not isinstance(stream, str):
        return None
    return _Piece(f"docker {stream}", "", text.removesuffix("\n"), text.endswith("\n"))


def _parts(text: str, depth: int = 0) -> Iterator[str]:
    """The lines of a record, or of one within it; any other text as it is."""
    record = _record(text) if depth < MAX_DEPTH else None
    if record is None:
        yield text
        return
    if (batched := list(_batched(record))) != [record]:
        for one in batched:
            yield from _lines_of(one, msgspec.json.encode(one).decode(), depth)
        return
    yield from _lines_of(record, text, depth)


def _of_pairs(line: str) -> Iterator[str]:
    """The lines that a record of key=value pairs tells, with what stood before it; any other line as it is."""
    if "level=" not in line and "lvl=" not in line:
        yield line
        return
    begin = LOGFMT.search(line)
    record: dict[str, Any] = {}
    at = begin.start() if begin is not None else len(line)
    while len(record) < MAX_PAIRS and (pair := PAIR.match(line, at)) is not None:
        value = pair["value"]
        record[pair["key"]] = _unquoted(value) if value[:1] == '"' else value
        at = pair.end()
    level = str(record.pop("lvl", record.get("level", ""))).upper()
    if begin is None or not level or not isinstance(said := record.get("msg"), str):
        yield line
        return
    error = next((record[field] for field in ERROR_FIELDS if record.get(field)), "")
    head = f"{line[: begin.start()]}{SHORT_LEVELS.get(level, level)} "
    first, *more = f"{said}: {error}".split("\n") if error and level != "DEBUG" else said.split("\n")
    yield from (head + first, *more)


def _unquoted(value: str) -> str:
    try:
        return msgspec.json.decode(value, type=str)
    except msgspec.DecodeError:
        return value.strip('"')


def _batched(record: dict[str, Any], names: Sequence[str] = BATCHES) -> Iterator[dict[str, Any]]:
    """The records that a batch holds; any other record as it is."""
    at = next((at for at, name in enumerate(names) if isinstance(record.get(name), list)), None)
    if at is None:
        yield record
        return
    for one in record[names[at]]:
        if isinstance(one, dict):
            yield from _batched(one, names[at + 1 :])


def _lines_of(record: dict[str, Any], text: str, depth: int) -> Iterator[str]:
    """`text` where it says nothing as a record."""
    said = next((found for field in TEXT_FIELDS if (found := _text_of(_within(record, field)))), "")
    traceback = _in_parts(record) or next(
        (found for field in TRACEBACK_FIELDS if (found := _text_of(_within(record, field)))), ""
    )
    error = next((value for field in ERROR_FIELDS if isinstance(value := record.get(field), str)), "")
    if not said and not traceback and not error:
        yield text
        return
    inner = said.split("\n") if "\n" in said else list(_parts(said, depth + 1))
    if said:
        yield from (_level(record) + inner[0], *inner[1:])
    if error and error not in said and error not in traceback:
        yield from (_level(record) + line for line in error.split("\n"))
    if traceback and traceback not in said:
        yield from traceback.split("\n")


def _record(text: str) -> dict[str, Any] | None:
    if not (text.startswith("{") and text.rstrip().endswith("}")):
        return None
    try:
        record = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _in_parts(record: dict[str, Any]) -> str:
    """The exception that a record holds in parts; empty where it holds none."""
    for field in EXCEPTION_FIELDS:
        value = _attributes(record.get(field))
        kind, message, stack = "", "", ""
        if isinstance(value, dict):
            kind, message, stack = (
                next((_text_of(value.get(key)) for key in keys if key in value), "") for keys in PARTS
            )
        elif isinstance(value, list) and len(value) > 1 and isinstance(value[0], str) and CLASS.match(value[0]):
            kind, message = CLASS.sub(r"\1", value[0]), _text_of(value[1])
        elif isinstance(record.get(f"{field}.type"), str):
            kind, message = record[f"{field}.type"], _text_of(record.get(f"{field}.message"))
        last = f"{kind}: {message}"
        if kind and last not in stack:
            heading = [HEADING] if stack and not stack.startswith(HEADING) else []
            return "\n".join([*heading, *([stack.rstrip("\n")] if stack else []), last])
        if kind:
            return stack
    return ""


def _attributes(value: object) -> object:
    """A list of OpenTelemetry's pairs as an object; anything else as it is."""
    if not isinstance(value, list) or not value or not all(isinstance(pair, dict) and "key" in pair for pair in value):
        return value
    return {str(pair["key"]): pair.get("value") for pair in value}


def _within(record: dict[str, Any], field: str) -> object:
    """Also under a dotted name that is written as objects within each other."""
    if field in record or "." not in field:
        return record.get(field)
    outer, inner = field.split(".")
    return found.get(inner) if isinstance(found := record.get(outer), dict) else None


def _text_of(value: object) -> str:
    """A text, or what some write for one: its bytes (journals), its lines, or an exception's parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _text_of(value.get("stringValue"))
    if not isinstance(value, list) or not value:
        return ""
    if all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return bytes(value).decode(errors="replace")
    if all(isinstance(line, str) for line in value):
        return "\n".join(line.rstrip("\n") for line in value)
    if all(isinstance(part, list) for part in value):
        return "\n".join(map(_text_of, value))
    return "\n".join(_traceback_of(part) for part in value if isinstance(part, dict))


def _traceback_of(exception: dict[str, Any]) -> str:
    """As Python prints it, from structlog's record of it."""
    frames = frames if isinstance(frames := exception.get("frames"), list) else []
    places = [
        f'  File "{frame.get("filename")}", line {frame.get("lineno")}, in {frame.get("name")}'
        for frame in frames
        if isinstance(frame, dict)
    ]
    last = f"{exception.get('exc_type')}: {exception.get('exc_value')}"
    return "\n".join(["Traceback (most recent call last):", *places, last])


def _level(record: dict[str, Any]) -> str:
    """As other loggers write it before their words; empty where the record has none."""
    values = [record[field] for field in LEVEL_FIELDS if field in record]
    level = next((value.upper() for value in values if isinstance(value, str) and value.isalpha()), "")
    number = next((value for value in values if isinstance(value, int) and value >= 0), None)
    if not level and number is not None:
        level = next(name for least, name in NUMBERED if number >= least)
    return f"{level} " if level else ""
