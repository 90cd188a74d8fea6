"""The lines of a log that may tell a failure without a traceback: of loggers, and of programs that the engine runs in,
starts, or is linked with. Dumps of arguments and advisories are none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from appliance.diagnosis.dressing import plain, undress
from appliance.diagnosis.first_exception import lone_exception, with_lines_around
from appliance.diagnosis.searchable import Searchable
from appliance.diagnosis.traceback_reader import LoggedException
from appliance.protocol import EvidenceLine

# A line that holds none of these tells no failure.
WORDS = (
    b"error", b"exception", b"fail", b"fatal", b"critical", b"kill", b"denied", b"no such", b"not found", b"annot",
    b"unable", b"xid", b"restart", b"back-off", b"backoff", b"nccl warn", b"unrecognized", b"invalid", b"signal",
    b"sigterm", b"oom", b"refused", b"timed out", b"timeout", b"abort", b"seg", b"dumped", b"unsatisfied", b"already",
    b"too old", b"initialized", b"supported", b"undefined", b"terminate", b"status=", b"uncorrectable", b"fallen",
    b"mismatch", b"insufficient", b"manifest", b"missing", b"too many", b"no space", b"exited", b"watchdog", b"exceeds",
)  # fmt: skip
QUIET = ("INFO", "DEBUG", "NOTICE")
WARNINGS = ("WARNING", "WARN")
FIRST, LAST = 300, 100
SAME = 80  # lines that end alike say the same
# What an engine was asked to do, in whatever words it prints it.
DUMP = re.compile(
    r"non-default args|Namespace\(|ServerArgs\(|server_args=|engine_args|\bwith config:|Initializing (?:a"
    r"|an) .{0,40}engine|Dumping"
    r" (?:input|scheduler)|^(?:\$ |# |\+ )?(?:docker|podman|python3?|vllm|sglang|nerdctl|sudo|kubectl) (?:run|serve|-m"
    r"|launch|exec)|^args: "
    r"|^\s{0,8}\[?\"?(?:command|args|entrypoint)\"?:"
)
# Advice, and failures that somebody has already got over.
ADVISORY = re.compile(
    r"`\w*(?:Error|Exception)\b[^`]{0,200}`|\w+Warning: |if you (?:see|get|encounter|run into|are running)|(?:may"
    r"|might|can|could) "
    r"(?:cause|lead|result|fail|raise)|fall(?:ing|s)? ?back|fallback|ignor(?:e|ing|ed)\b|skipp(?:ing|ed)\b|"
    r"not (?:critical|fatal)|harmless|retry(?:ing)?\b|consider (?:setting|using|increasing|decreasing|raising"
    r"|lowering)|to (?:avoid|suppress|"
    r"silence) this|deprecat|errno: 97|optional|will be disabled|is disabled\b|disabling|please refer"
    r"|performance might be",
    re.IGNORECASE,
)
# So said by loggers at the level of errors, and survived.
TOLERATED = re.compile(
    r"failed to (?:import|load) .{0,80}(?:plugin|extension)|usage stat|Fail to set RLIMIT|Found ulimit|libibverbs"
    r"|openmpi|telemetry|prometheus"
    r"|Config file not found|using default|NET/Plugin|net plugin|ncclnet_|libnccl-net|No plugin found|TUNER/Plugin"
    r"|PROFILER/Plugin",
    re.IGNORECASE,
)
CODE = re.compile(r'(?:raise |return |assert |File "|self\.|\^)')

Tier = Literal["error", "bare", "warning"]


@dataclass(frozen=True)
class ErrorLine:
    """`tier`: marked as an error by a logger, written by a bare process, or marked as a warning. `exception`: what is
    told in it of one, without a traceback."""

    line: EvidenceLine
    tier: Tier
    exception: LoggedException | None

    @property
    def text(self) -> str:
        return self.exception.text if self.exception else self.line.text


def error_lines(log: Searchable) -> Iterator[ErrorLine]:
    """In order; what repeats an earlier one is left out, and of very many the middle."""
    seen: set[str] = set()
    positions = sorted({position for word in WORDS for position in log.positions(word)})
    fresh = []
    for position in positions:
        text = log.lines[position].text
        head = text[:160]
        if "]     " in head or " INFO " in head or "DEBUG " in head or head.startswith("INFO"):
            continue  # code of a traceback, or of no interest: most of a log, and cheaply told
        if text[-SAME:] not in seen:
            seen.add(text[-SAME:])
            fresh.append(position)
    if len(fresh) > FIRST + LAST:
        fresh = [*fresh[:FIRST], *fresh[-LAST:]]
    for position in fresh:
        found = _read(log, position)
        if found is not None:
            yield found


def _read(log: Searchable, position: int) -> ErrorLine | None:
    line = log.lines[position]
    text = plain(line.text)
    dressed = undress(text)
    words = dressed.words.strip()
    if dressed.level in QUIET or DUMP.search(words) or CODE.match(words) or TOLERATED.search(words):
        return None
    exception = None
    if "rror" in words or "xception" in words or "Cast" in words or "Resources" in words:
        exception = lone_exception(line, dressed)
        if exception is not None and dressed.words[:1] in (" ", "\t") and not words.startswith(exception.type):
            return None  # a line of code
    if dressed.level in WARNINGS:
        return ErrorLine(EvidenceLine(line.number, words), "warning", exception)
    if ADVISORY.search(words):
        return None
    if exception is not None:
        exception = with_lines_around(exception, log.lines, position)
    tier: Tier = "error" if dressed.level else "bare"
    return ErrorLine(EvidenceLine(line.number, words), tier, exception)
