"""How far the engine got according to its log: whether it was ready, how often it restarted, whether it is waiting."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter

from appliance.diagnosis.causes.hang import WAITING, Waiting
from appliance.diagnosis.dressing import plain, undress
from appliance.diagnosis.searchable import Searchable
from appliance.protocol import EvidenceLine

STARTED = (
    b"application startup complete",
    b"fired up and ready to roll",
    b"uvicorn running on",
    b"available routes are",
    b"server is listening on",
    b"started httpservice at",
)
HEALTH_ANSWER = b'get /health http/1.1" 200'
FIGURES = (b"avg prompt throughput", b"avg generation throughput", b"decode batch")
READY = (*STARTED, HEALTH_ANSWER, *FIGURES)
# A server whose engine has died may still print the figures of its last interval, and zeros after that.
FIGURES_OF_WORK = re.compile(r"throughput\b[^:]{0,20}: {0,3}(?:[1-9]|0\.0{0,3}[1-9])", re.IGNORECASE)
PROOFS = 2
RESTARTS = (
    b"restart counter is at",
    b"back-off restarting",
    b"crashloopbackoff",
    b"restarting (",
    b"(restarting)",
    b"start request repeated too quickly",
)
COUNTER = re.compile(r"counter is at (\d{1,9})|CrashLoopBackOff {1,40}(\d{1,9}) ")
# What an engine logs as it ends.
ENDING = re.compile(r"kill|shut|terminat|stop|exit|sig[a-z]{3,4}\b|error|fail|died|dead|abort|exception", re.IGNORECASE)
HANDED_ON = re.compile(r"NCCL INFO (?:init|bootstrap|group)\.cc:\d{1,6} -> [1-9]")
# An engine that starts anew, so that what follows says nothing of the process before it.
BEGINNING = ("vllm api server version", "non-default args: ", "server_args=serverargs(", "detected platform ")
LINES_AFTER = 400
LOUD = ("ERROR", "CRITICAL", "FATAL", "EXCEPTION")
# A waiting process says so last.
LAST_LINES = 5
TIMES = 2


def ready_at(log: Searchable) -> int | None:
    """The position of the last line that only a serving engine writes."""
    found = [position for word in READY if (position := log.last(word)) is not None]
    return max(found, default=None)


def healthy_until(log: Searchable) -> int | None:
    """The position of the line before which even a fatal error was survived: a server started after it, or did work
    for more than one interval. None where no line proves that."""
    started = [position for word in STARTED if (position := log.last(word)) is not None]
    proofs = set(islice(log.positions_from_end(HEALTH_ANSWER), PROOFS))
    for word in FIGURES:
        worked = (at for at in log.positions_from_end(word) if FIGURES_OF_WORK.search(log.lines[at].text))
        proofs.update(islice(worked, PROOFS))
    if len(proofs) >= PROOFS:
        started.append(sorted(proofs)[-PROOFS])
    return max(started, default=None)


def goes_on_after(number: int, key: str, lines: Sequence[EvidenceLine]) -> bool:
    """Whether this stream's process keeps logging after the line as if nothing had happened; after an unsigned line,
    whether all processes do."""
    said = _said_after(number, key, lines)
    if said is None and not key:
        return _all_go_on_after(number, lines)
    return said is not None and ENDING.search(said) is None


def _all_go_on_after(number: int, lines: Sequence[EvidenceLine]) -> bool:
    told = (undress(plain(line.text)) for line in _after(number, lines))
    headed = (dressed for dressed in told if dressed.header and dressed.words.strip())
    went_on = False
    for dressed in headed:
        if dressed.level in LOUD or ENDING.search(dressed.words) is not None:
            return False
        went_on = went_on or dressed.level == "INFO"
    return went_on


def ends_after(number: int, key: str, lines: Sequence[EvidenceLine]) -> bool:
    """Whether this stream's process says after the line that it ends, or NCCL that it propagates an error."""
    said = _said_after(number, key, lines)
    if said is not None and ENDING.search(said) is not None:
        return True
    begin = bisect_right(lines, number, key=attrgetter("number"))
    return any(HANDED_ON.search(line.text) for line in lines[begin : begin + LINES_AFTER])


def _said_after(number: int, key: str, lines: Sequence[EvidenceLine]) -> str | None:
    for line in _after(number, lines):
        dressed = undress(plain(line.text))
        if dressed.key == key and dressed.header and dressed.level in ("INFO", "") and dressed.words.strip():
            return dressed.words
    return None


def _after(number: int, lines: Sequence[EvidenceLine]) -> Iterator[EvidenceLine]:
    """The lines after that number, up to the next start of an engine."""
    begin = bisect_right(lines, number, key=attrgetter("number"))
    for line in lines[begin : begin + LINES_AFTER]:
        if any(map(line.text.lower().__contains__, BEGINNING)):
            return
        yield line


def restarts(log: Searchable) -> tuple[int, EvidenceLine | None]:
    """How often it was restarted, and the last line that says so."""
    if not log.present((b"restart", b"back")):
        return 0, None
    positions = sorted({position for word in RESTARTS for position in log.positions(word)})
    if not positions:
        return 0, None
    line = log.lines[positions[-1]]
    counter = COUNTER.search(line.text)
    return (int(counter[1] or counter[2]) if counter else len(positions)), line


def waiting_for(log: Searchable) -> tuple[Waiting, tuple[EvidenceLine, ...]] | None:
    """What a process is waiting for at the end of its log, with the first and the last line that say so."""
    for waiting in WAITING:
        positions = sorted({position for sign in waiting.signs for position in log.positions(sign)})
        if len(positions) >= TIMES and len(log.lines) - positions[-1] <= LAST_LINES:
            return waiting, (log.lines[positions[0]], log.lines[positions[-1]])
    return None
