"""What a log line is: its level, the process that wrote it, its time; read from the line itself and from the lines
before it, since the lines of a traceback say nothing of their own."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple


class Level(enum.IntEnum):
    """Ordered, so that a filter is a comparison. OTHER: the line does not say."""

    OTHER = 0
    DEBUG = 1
    INFO = 2
    WARNING = 3
    ERROR = 4


# How far into a line its level, process and time are looked for.
HEAD = 400

_ESCAPE = re.compile(rb"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]")
# vLLM's `(EngineCore_DP0 pid=71)`, SGLang's `[2026-11-20 10:00:00 TP0]`.
_PROCESS = re.compile(
    rb"\((?P<vllm>[A-Za-z][\w ./=-]{0,60}?) pid=\d{1,9}\) ?|\[[\d-]{10} [\d:]{8} (?P<sglang>TP\d{1,4}[ \w]{0,40})\] ?"
)
_LEVEL = re.compile(
    rb"(?<![\w/.-])(?:(?P<ERROR>ERROR|CRITICAL|FATAL|Fatal)|(?P<WARNING>WARN(?:ING)?)|(?P<INFO>INFO)|(?P<DEBUG>DEBUG|TRACE))(?![\w.-])"
    rb"|\b(?P<warned>(?:[A-Z]\w{0,80})?Warning):"
)
_EXCEPTION = re.compile(
    rb"(?:\[[\w.:]{1,120}\] )?"  # a module and line, as in `[core.py:492]`
    rb"(?:(?:[A-Za-z_][\w.]{0,120}\.)?[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit)(?::|$)"
    rb"|(?:Segmentation fault|Aborted|Killed)\b)"
    rb"|[^ ]{0,200} ?fatal error:|Fatal Python error:|terminate called after"
)
_TRACEBACK = b"Traceback (most recent call last)"


class LineKind(NamedTuple):
    level: Level
    process: str


class Classifier:
    """Reads lines in order. One instance a log."""

    def __init__(self) -> None:
        self._last = Level.OTHER
        self._in_traceback = False

    def feed(self, line: bytes) -> LineKind:
        head = line[:HEAD]
        if b"\x1b" in head:
            head = _ESCAPE.sub(b"", head)
        process = ""
        if (match := _PROCESS.match(head)) is not None:
            process = (match["vllm"] or match["sglang"]).decode("ascii", "replace")
            head = head[match.end() :]
        self._last = self._level(head)
        return LineKind(self._last, process)

    def _level(self, head: bytes) -> Level:
        explicit = _LEVEL.search(head, 0, 160)
        if explicit is not None and explicit.lastgroup is not None:
            name = explicit.lastgroup
            # A warning may be an exception's message; inside a traceback the traceback decides.
            if not self._in_traceback or name == "ERROR":
                level = Level.WARNING if name == "warned" else Level[name]
                self._in_traceback = _TRACEBACK in head
                return Level.ERROR if self._in_traceback else level
        if _TRACEBACK in head:
            self._in_traceback = True
            return Level.ERROR
        indented = head[:1] in (b" ", b"\t", b"")
        if self._in_traceback:
            self._in_traceback = indented
            return Level.ERROR
        if _EXCEPTION.match(head):
            return Level.ERROR
        return self._last if indented and head.strip() else Level.OTHER


_TIME = re.compile(r"(?<![\d:])([012]\d:[0-5]\d:[0-5]\d)(?:[.,]\d{1,9})?(?![\d:])")
_PREFIX = re.compile(
    r"(?P<process>\([A-Za-z][\w ./=-]{0,60}? pid=\d{1,9}\) ?)?"
    r"(?P<head>"
    r"(?:ERROR|CRITICAL|WARNING|INFO|DEBUG) \d\d-\d\d [\d:]{8}(?:[.,]\d{1,9})? "  # vLLM
    r"|\[[\d-]{10} [\d:]{8}(?: TP\d[ \w]{0,40})?\] "  # SGLang
    r"|\[?(?:\d{4}-\d\d-\d\d[ T])?[\d:]{8}(?:[.,]\d{1,9})?(?:Z|\+\d\d:?\d\d)?\]? "
    r"(?:\[?(?:ERROR|CRITICAL|WARNING|INFO|DEBUG)\]?:? {1,40})?"  # Python's logging, as ours
    r")?"
)


def time_of(line: str) -> str | None:
    """The clock time near the start of the line, as `14:02:11`."""
    match = _TIME.search(line[:80])
    return match[1] if match else None


def prefix_length(line: str) -> int:
    """How much of the line's beginning says its process, time and level: what columns of their own show."""
    match = _PREFIX.match(line)
    return match.end() if match else 0
