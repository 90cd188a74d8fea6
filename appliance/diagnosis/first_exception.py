"""Finds the exception that came first in a log: of a chain its first link, and never one that only points at another.

A traceback is followed by the prefix of its first line (`(Worker pid=7) ERROR 11-20 10:02:11 [core.py:12] `), in
which numbers may change; lines of other processes in between are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.protocol import EvidenceLine

OPENING = "Traceback (most recent call last):"
# Raised only to say that something else failed, or to end on request.
POINTERS = re.compile(
    r"see (the )?(root cause|stack trace|error)s? above|engine core initialization failed|^(KeyboardInterrupt|"
    r"SystemExit|asyncio\.exceptions\.CancelledError|CancelledError|GeneratorExit)\b",
    re.IGNORECASE,
)
EXCEPTION_LINE = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Fault|Warning|Cast))\b"
    r"(?:: (?P<message>.*))?$"
)
ANY_END = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: (?P<message>.*))?$")
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MAX_TRACEBACK_LINES = 2000
MAX_MESSAGE_LINES = 12


@dataclass(frozen=True)
class LoggedException:
    """`line` is where the exception's own line stands; `text` is that line without prefix, with the lines of a longer
    message; `frame` is the innermost place of the traceback, if it is there."""

    type: str
    message: str
    text: str
    line: EvidenceLine
    frame: EvidenceLine | None = None

    @property
    def headline(self) -> str:
        first = self.message.splitlines()[0] if self.message else ""
        return f"{self.type}: {first}" if first else self.type


def first_exception(lines: Sequence[EvidenceLine]) -> LoggedException | None:
    """None where the log holds no exception."""
    plain = [EvidenceLine(line.number, ANSI.sub("", line.text)) for line in lines]
    pointer: LoggedException | None = None
    for index, line in enumerate(plain):
        start = line.text.find(OPENING)
        if start >= 0 and (found := _read_traceback(plain, index, line.text[:start])) is not None:
            if not POINTERS.search(found.headline):
                return found
            pointer = pointer or found
    return _lone_line(plain) or pointer


def _read_traceback(lines: Sequence[EvidenceLine], index: int, prefix: str) -> LoggedException | None:
    strip = _prefix_pattern(prefix)
    frame: EvidenceLine | None = None
    for position in range(index + 1, min(index + 1 + MAX_TRACEBACK_LINES, len(lines))):
        line = lines[position]
        matched = strip.match(line.text)
        if matched is None:
            continue
        rest = line.text[matched.end() :]
        if rest.startswith('  File "'):
            frame = EvidenceLine(line.number, rest.strip())
        if not rest.strip() or rest.startswith((" ", "\t")):
            continue
        if (end := ANY_END.match(rest)) is None:
            continue  # such as "  [Previous line repeated ...]", or a line of a process without a prefix
        message = [end["message"] or "", *_continuation(lines, position, strip)]
        text = "\n".join([rest, *message[1:]])
        return LoggedException(end["type"], "\n".join(message).rstrip(), text, EvidenceLine(line.number, rest), frame)
    return None


def _continuation(lines: Sequence[EvidenceLine], position: int, strip: re.Pattern[str]) -> list[str]:
    """The further lines of a message, up to the next blank line, traceback or log line."""
    more: list[str] = []
    for line in lines[position + 1 : position + 1 + MAX_MESSAGE_LINES]:
        matched = strip.match(line.text)
        rest = line.text[matched.end() :] if matched else ""
        if not rest.strip() or OPENING in rest or LOG_LINE.match(rest):
            break
        more.append(rest)
    return more


LOG_LINE = re.compile(r"\W{0,2}(\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|\((\w+ )?pid=)")


def _prefix_pattern(prefix: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\d+", r"\\d+", re.escape(prefix)))


def _lone_line(lines: Sequence[EvidenceLine]) -> LoggedException | None:
    """Where the traceback was cut off above, its last line may still be there."""
    for line in lines:
        found = EXCEPTION_LINE.search(line.text)
        # `Type: message` at the end of a log line's prefix, not inside of a sentence.
        if found and found["message"] and not POINTERS.search(found[0]) and _begins_statement(line.text, found.start()):
            text = line.text[found.start() :]
            return LoggedException(found["type"], found["message"], text, EvidenceLine(line.number, text))
    return None


def _begins_statement(text: str, start: int) -> bool:
    before = text[:start].rstrip()
    return not before or before[-1] in ":])>"
