"""How far the engine came by its log: whether it was ready, how often it was started, and whether it only waits."""

from __future__ import annotations

import re

from appliance.diagnosis.causes.hang import WAITING
from appliance.diagnosis.searchable import Searchable
from appliance.protocol import EvidenceLine

READY = (
    "Application startup complete",
    "fired up and ready to roll",
    "Uvicorn running on",
    "Available routes are",
    'GET /health HTTP/1.1" 200',
    "Avg prompt throughput",
    "Avg generation throughput",
    "Decode batch",
)
RESTARTS = (
    "restart counter is at",
    "Back-off restarting",
    "CrashLoopBackOff",
    "Restarting (",
    "Start request repeated too quickly",
)
COUNTER = re.compile(r"counter is at (\d+)")
# A process that waits says so last.
LAST_SHARE = 0.2
LAST_LINES = 20
TIMES = 2


def ready_at(log: Searchable) -> int | None:
    """The position of the last line that only an engine which serves writes."""
    found = [position for word in READY if (position := log.last(word)) is not None]
    return max(found, default=None)


def restarts(log: Searchable) -> tuple[int, EvidenceLine | None]:
    """How often it was restarted, and the last line that says so."""
    positions = sorted({position for word in RESTARTS for position in log.positions(word)})
    if not positions:
        return 0, None
    line = log.lines[positions[-1]]
    counter = COUNTER.search(line.text)
    return (int(counter[1]) if counter else len(positions)), line


def waiting_for(log: Searchable) -> tuple[EvidenceLine, ...]:
    """The first and the last of the lines with which a process waits at the end of its log; none where it does not."""
    positions: list[int] = []
    for word in WAITING:
        positions += log.positions(word)
        positions += log.positions(word[0].upper() + word[1:])
    if len(positions) < TIMES:
        return ()
    positions.sort()
    near_the_end = max(LAST_LINES, int(len(log.lines) * LAST_SHARE))
    if len(log.lines) - positions[-1] > near_the_end:
        return ()
    return log.lines[positions[0]], log.lines[positions[-1]]
