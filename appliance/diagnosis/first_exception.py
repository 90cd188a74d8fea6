"""Finds the exceptions in a log and the one that came first: of a chain its first link, and never one that only
points at another."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from appliance.diagnosis.dressing import Dressed, plain, undress
from appliance.diagnosis.pointers import is_aftermath, is_dump, is_lead, is_pointer, is_survived
from appliance.diagnosis.traceback_reader import CHAIN, FRAME, MAX_LINES, OPENING, LoggedException, TracebackReader
from appliance.protocol import EvidenceLine

MAX_EXCEPTIONS = 100
MAX_LINES_BACK = 60
MAX_MESSAGE_LINES = 40
MAX_MESSAGE = 4000
MAX_TYPE = 200
MAX_CODE = 200
# The end of a type's name, where `Type: message` may begin.
LONE = re.compile(r"(?:Error|Exception|Fault|Resources|Cast|IsEnabled)(?:_\w{1,60})?(?:: |\(['\"]|$)")
STATEMENT_BEFORE = " \t:])>('\"=-"
REPEATED = re.compile(r" \[repeated \d{1,9}x across cluster\]")
# After the first line of these messages an empty one stands, and then what matters.
SPACED = "(Request ID: "
ENDS_MESSAGE = (OPENING, "Exception ignored in", "[rank", "Process ", "Killed", *CHAIN)


def exceptions_in(lines: Sequence[EvidenceLine]) -> list[LoggedException]:
    """The exceptions with a traceback, in the order in which the tracebacks begin, each with the first line of its
    message (see `with_message`)."""
    reader = TracebackReader()
    found: list[LoggedException] = []
    for line in lines:
        exception = reader.feed(line.number, line.text)
        if exception is not None:
            found.append(exception)
            if len(found) == MAX_EXCEPTIONS:
                break
    return sorted(found, key=lambda exception: exception.start)


def cut_short(lines: Sequence[EvidenceLine]) -> list[LoggedException]:
    """The tracebacks in the middle of which the log ends: nothing of their stream follows."""
    reader = TracebackReader()
    end = lines[-MAX_LINES:]
    for line in end:
        reader.feed(line.number, line.text)
    return [
        exception
        for exception in reader.unfinished()
        if not any(
            undress(plain(line.text)).key == exception.key
            for line in end[bisect_right(end, exception.line.number, key=attrgetter("number")) :]
        )
    ]


def lone_exception(line: EvidenceLine, dressed: Dressed) -> LoggedException | None:
    """An exception that a line tells without its traceback, which was cut off or never there."""
    words = REPEATED.sub("", dressed.words) if "[repeated" in dressed.words else dressed.words
    found = LONE.search(words)
    if found is None:
        return None
    start = found.start()
    while start and (words[start - 1].isalnum() or words[start - 1] in "._") and found.start() - start < MAX_TYPE:
        start -= 1
    if start and words[start - 1] not in STATEMENT_BEFORE:
        return None
    if start == found.start() and not found[0].startswith(("Error", "Exception")):
        return None  # a word of a sentence
    if found.end() == len(words) and words[:start].strip():
        return None  # without a message it stands alone
    text = words[start:].rstrip()
    return LoggedException(
        type=words[start : found.end()].rstrip(": ('\""),
        message=words[found.end() :].rstrip(),
        text=text,
        line=EvidenceLine(line.number, text),
        key=dressed.key,
        level=dressed.level,
        start=line.number,
    )


def with_lines_around(exception: LoggedException, lines: Sequence[EvidenceLine]) -> LoggedException:
    """With the further lines of its message, the end of its traceback, and the line that announced it."""
    index = bisect_left(lines, exception.line.number, key=attrgetter("number"))
    frames: list[tuple[EvidenceLine, str]] = []
    code = lead = ""
    for line in reversed(lines[max(0, index - MAX_LINES_BACK) : index]):
        dressed = undress(plain(line.text))
        if dressed.key != exception.key:
            continue
        if dressed.words[:1] not in (" ", "\t"):
            lead = dressed.words if is_lead(dressed.words) else ""
            break
        if FRAME.match(dressed.words):
            frames.append((EvidenceLine(line.number, dressed.words.strip()), code[:MAX_CODE]))
            code = ""
        else:
            code = dressed.words.strip()
    return with_message(replace(exception, frames=tuple(reversed(frames)), lead=exception.lead or lead), lines)


def first_exception(lines: Sequence[EvidenceLine]) -> LoggedException | None:
    """None where the log holds no exception. Better one that points elsewhere, or that was survived, than none."""
    exceptions = [with_message(exception, lines) for exception in exceptions_in(lines)]
    for unwanted in ((is_pointer, is_aftermath, is_survived), (is_pointer, is_survived), (is_survived,), ()):
        for exception in exceptions:
            if not any(test(exception) for test in unwanted):
                return exception
        if (lone := _first_lone(lines)) is not None and not any(test(lone) for test in unwanted):
            return lone
    return None


def _first_lone(lines: Sequence[EvidenceLine]) -> LoggedException | None:
    for line in lines:
        if ("Error" in line.text or "Exception" in line.text) and "\n" not in line.text:
            dressed = undress(plain(line.text))
            lone = None if is_dump(dressed.words) else lone_exception(line, dressed)
            if lone is not None and not is_survived(lone) and not is_pointer(lone):
                return with_lines_around(lone, lines)
    return None


def with_message(exception: LoggedException, lines: Sequence[EvidenceLine]) -> LoggedException:
    """With the further lines of its message: up to the next blank line, traceback, or line of a logger."""
    index = bisect_left(lines, exception.line.number, key=attrgetter("number"))
    if index == len(lines) or lines[index].number != exception.line.number:
        return exception
    index = _place_of(exception, lines, index)
    first = undress(plain(lines[index].text))
    body: list[EvidenceLine] = []
    size = 0
    spaced = SPACED in exception.text
    elsewhere = False  # unsigned lines after those of another stream are that one's
    for line in lines[index + 1 : index + 1 + MAX_MESSAGE_LINES]:
        dressed = undress(plain(line.text))
        if dressed.key != first.key and (elsewhere or line.text[:1] not in (" ", "\t")):
            elsewhere = True
            continue
        elsewhere = False
        if dressed.header != first.header and (dressed.header or dressed.key):
            if dressed.key and first.header:
                continue  # the same process's other voice
            break
        words = dressed.words.rstrip()
        if not words and spaced and not body:
            continue
        if not words or words.lstrip(" |+").startswith(ENDS_MESSAGE) or OPENING in words:
            break
        body.append(EvidenceLine(line.number, words))
        size += len(words)
        if size > MAX_MESSAGE:
            break
    more = [line.text for line in body]
    return replace(
        exception,
        text="\n".join([exception.text, *more]),
        message="\n".join([exception.message, *more]),
        body=tuple(body),
    )


def _place_of(exception: LoggedException, lines: Sequence[EvidenceLine], index: int) -> int:
    """Of the lines from `index` on that have its number, since they are of one record, the one that it stands in."""
    for at in range(index, len(lines)):
        if lines[at].number != exception.line.number:
            break
        if plain(lines[at].text).rstrip().endswith(exception.line.text):
            return at
    return index
