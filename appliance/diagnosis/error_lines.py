"""Log lines that may report a failure without a traceback: from loggers, and from programs that the engine runs in,
starts or links to. Dumps of arguments and advice do not count."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import Literal

from appliance.diagnosis.dressing import Dressed, plain, undress
from appliance.diagnosis.first_exception import lone_exception, with_lines_around
from appliance.diagnosis.pointers import is_dump, is_giving_up
from appliance.diagnosis.searchable import Searchable
from appliance.diagnosis.traceback_reader import LoggedException
from appliance.diagnosis.validation import lines_below
from appliance.protocol import EvidenceLine

# A line without any of these reports no failure.
WORDS = (
    b"error", b"exception", b"fail", b"fatal", b"critical", b"kill", b"denied", b"no such", b"not found", b"annot",
    b"unable", b"xid", b"restart", b"back-off", b"backoff", b"nccl warn", b"unrecognized", b"invalid", b"signal",
    b"sigterm", b"sigbus", b"sigill", b"sigabrt", b"oom", b"refused", b"timed out", b"timeout", b"abort", b"seg",
    b"dumped", b"unsatisfied", b"already",
    b"too old", b"initialized", b"supported", b"undefined", b"terminate", b"status=", b"uncorrectable", b"fallen",
    b"exit code",
    b"mismatch", b"insufficient", b"manifest", b"missing", b"too many", b"no space", b"exited", b"watchdog",
    b"exceeds", b"panic", b"no platform", b"resource", b"could not", b"not allowed", b"yaml", b"assert", b"read-only",
    b"not enough", b"detected an attempt", b"couldn't",
)  # fmt: skip
TOLD_QUIETLY = ("no platform detected",)
QUIET = ("INFO", "DEBUG", "NOTICE")
WARNINGS = ("WARNING", "WARN")
FIRST, LAST = 300, 100
SAME = 80  # lines that end alike say the same
# Advice, and failures that were already handled.
ADVICE = (
    "if you see", "if you get", "if you encounter", "if you are running", "may cause", "might cause", "can cause",
    "could cause", "may lead", "can lead", "could lead", "may result", "may fail", "might fail", "may raise",
    "can raise", "fall back", "falling back", "falls back", "fallback", "ignore", "ignoring", "skipping", "skipped",
    "not critical", "not fatal", "harmless", "retrying", "consider setting", "consider using", "consider increasing",
    "consider decreasing", "consider raising", "consider lowering", "to avoid this", "to suppress this",
    "to silence this", "deprecat", "errno: 97", "optional", "will be disabled", "is disabled.", "disabling",
    "please refer", "performance might be", "error`", "errors like",
)  # fmt: skip
# Logged as errors, and survived.
TOLERATED = (
    "usage stat", "fail to set rlimit", "found ulimit", "libibverbs", "openmpi", "telemetry", "prometheus",
    "config file not found", "using default", "net/plugin", "net plugin", "ncclnet_", "libnccl-net",
    "libgomp: invalid value",
    "no plugin found", "tuner/plugin", "profiler/plugin", "model info cache", "nccl info", "call to bind failed",
    "ras failed", "cannot use fa version", "failed to import triton", "error retrieving",
)  # fmt: skip
# How argparse ends a program, whatever it then says of the argument.
REFUSED_ARGUMENT = ": error: argument "
# What pydantic says of a setting, under a heading that a logger may have swallowed.
VALIDATION = ("Value error, ", "Assertion failed, ")
# A line of `kubectl describe`.
EVENT = re.compile(r"(?:Warning|Normal) {1,10}[A-Z]\w{1,40} {1,10}")
# How the library of C++ reports an exception that nothing caught.
TERMINATED = "terminate called after throwing an instance of '"
WHAT = re.compile(r"\s{0,8}what\(\): {1,4}(?P<message>\S.{0,2000})")
MAX_WHAT = 4  # lines of other streams may come between
# What the libraries of GPUs say of a call that failed, in programs without exceptions.
OF_A_GPU = re.compile(
    r"(?:^|[\])>:-] )(?P<kind>(?:CUDA|HIP|MUSA|SYCL|Vulkan) [Ee]rror)(?: \d{1,4})?: {0,4}(?P<message>\S.{0,2000})"
)
CAUSED_BY = "Caused by:"
COUNT = re.compile(r"\d{1,3}: ")
MAX_CAUSES = 12
CODE = re.compile(r'(?:raise |return |assert |File "|self\.|\^)')

Tier = Literal["error", "bare", "warning"]


@dataclass(frozen=True)
class ErrorLine:
    """`tier`: marked as an error by a logger, written by a bare process, or marked as a warning. `exception`: the
    exception mentioned in it, without a traceback. `key`: the stream that it belongs to; `level`: its logger's.
    `below`: what it announces, where it only counts the errors that follow."""

    line: EvidenceLine
    tier: Tier
    exception: LoggedException | None
    key: str = ""
    level: str = ""
    below: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        return "\n".join((self.line.text, *self.below))


def error_lines(lines: Sequence[EvidenceLine]) -> Iterator[ErrorLine]:
    """In order; what repeats an earlier one is left out, and of very many the middle."""
    log = Searchable(list(_telling(lines)))
    told: set[int] = set()
    for word in log.present(WORDS):
        told.update(islice(log.positions(word), FIRST), islice(log.positions_from_end(word), LAST))
    positions = sorted(told)
    if len(positions) > FIRST + LAST:
        positions = [*positions[:FIRST], *positions[-LAST:]]
    for position in positions:
        found = error_line(log.lines[position], lines)
        if found is not None:
            yield found


def _telling(lines: Sequence[EvidenceLine]) -> Iterator[EvidenceLine]:
    """Without most of the log: repeated and quiet lines. Skipping them is cheaper than searching them."""
    seen: set[str] = set()
    for line in lines:
        end = line.text[-SAME:]
        if end not in seen:
            seen.add(end)
            if not _is_quiet(line.text[:160]):
                yield line


def _is_quiet(head: str) -> bool:
    """A cheap test of a line's beginning: code in a traceback, or a level of no interest."""
    if ".py:" in head and "]     " in head:
        return True
    return (" INFO " in head or "DEBUG " in head or head.startswith("INFO")) and "o platform" not in head


def error_line(line: EvidenceLine, lines: Sequence[EvidenceLine]) -> ErrorLine | None:
    """One of `lines`, if it reports an error."""
    dressed = undress(plain(line.text))
    words = dressed.words.strip()
    lowered = words.lower()
    if dressed.level in QUIET and _holds(lowered, TOLD_QUIETLY):
        return ErrorLine(EvidenceLine(line.number, words), "warning", None)
    if dressed.level in QUIET or CODE.match(words) or is_dump(words):
        return None
    exception = lone_exception(line, dressed)
    ends = exception is not None and not dressed.level and words.startswith(exception.type)
    if not ends and _holds(lowered, TOLERATED):
        return None
    indented = dressed.words[:1] in (" ", "\t") and EVENT.match(words) is None
    if exception is not None and indented and not words.startswith(exception.type):
        return None  # a line of code
    if dressed.level in WARNINGS or "warning: " in lowered:
        return ErrorLine(EvidenceLine(line.number, words), "warning", exception)
    if _holds(lowered, ADVICE) and REFUSED_ARGUMENT not in lowered:
        return None
    if exception is None or exception.type == "Error":
        exception = _of_a_gpu(line, words, dressed) or exception
    if exception is not None and words.startswith("Error: ") and (causes := _caused_by(line, dressed, lines)):
        exception = _innermost(exception, causes)
    elif exception is not None:
        exception = with_lines_around(exception, lines)
    elif words.startswith(TERMINATED):
        exception = _of_native_code(line, dressed, lines)
    tier: Tier = "error" if dressed.level or words.startswith(VALIDATION) else "bare"
    below = lines_below(line, words, dressed.key, lines) if exception is None else ()
    return ErrorLine(EvidenceLine(line.number, words), tier, exception, dressed.key, dressed.level, below)


def _of_native_code(line: EvidenceLine, dressed: Dressed, lines: Sequence[EvidenceLine]) -> LoggedException | None:
    """The exception of C++ that nothing caught: its type, and what it said on the next line of its stream."""
    index = bisect_right(lines, line.number, key=attrgetter("number"))
    for other in lines[index : index + MAX_WHAT]:
        after = undress(plain(other.text))
        if after.key == dressed.key and (said := WHAT.match(after.words)) is not None:
            kind = dressed.words.strip().removeprefix(TERMINATED).rstrip("'")
            text = f"{kind}: {said['message']}"
            told = EvidenceLine(other.number, after.words.strip())
            return LoggedException(kind, said["message"], text, told, key=dressed.key, start=line.number)
    return None


def _of_a_gpu(line: EvidenceLine, words: str, dressed: Dressed) -> LoggedException | None:
    """What a GPU's library says of a call that failed, in a program that has no exceptions."""
    found = OF_A_GPU.search(words)
    if found is None:
        return None
    text = words[found.start("kind") :]
    return LoggedException(
        found["kind"],
        found["message"],
        text,
        EvidenceLine(line.number, text),
        key=dressed.key,
        level=dressed.level,
        start=line.number,
    )


def _caused_by(line: EvidenceLine, dressed: Dressed, lines: Sequence[EvidenceLine]) -> list[EvidenceLine]:
    """The causes that a program in Rust lists below its error, the outermost first."""
    index = bisect_right(lines, line.number, key=attrgetter("number"))
    causes: list[EvidenceLine] = []
    announced = False
    for other in lines[index : index + MAX_CAUSES]:
        after = undress(plain(other.text))
        if after.key != dressed.key:
            continue
        words = after.words.strip()
        if not announced:
            if words and not words.startswith(CAUSED_BY):
                break
            announced = bool(words)
        elif not words or after.words[:1] not in (" ", "\t"):
            break
        else:
            causes.append(EvidenceLine(other.number, COUNT.sub("", words)))
    return causes


def _innermost(exception: LoggedException, causes: Sequence[EvidenceLine]) -> LoggedException | None:
    """The innermost that says more than that the program gives up; none if all say that."""
    for cause in reversed(causes):
        if not is_giving_up(cause.text.rpartition(": ")[2]):
            return replace(exception, message=cause.text, text=f"{exception.type}: {cause.text}", line=cause)
    return None if is_giving_up(exception.message) else exception


def _holds(text: str, phrases: tuple[str, ...]) -> bool:
    return any(map(text.__contains__, phrases))
