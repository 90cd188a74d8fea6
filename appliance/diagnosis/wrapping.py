"""Lines that a terminal or a mail broke at its edge, put together again; and logs whose newest line comes first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from appliance.diagnosis.dressing import plain, undress

LEAST_WIDTH, MOST_WIDTH = 60, 200
LEAST_BROKEN = 3
LEAST_HEADED = 0.2
LEAST_STAMPS = 4
LEAST_BACKWARDS = 0.8  # several processes may write a second out of order
MAX_STAMPED = 2000
STAMP = re.compile(r"(?:\d{4}[-/]\d\d[-/]\d\d[T ]|\b\d\d-\d\d )\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
# What begins a line of its own, whatever stood before it.
BEGINS = ("Traceback (", '  File "', "INFO", "WARNING", "ERROR", "Process ")

Line = tuple[int, str]


def rejoined(lines: Sequence[Line]) -> Sequence[Line]:
    """Unchanged where nothing shows that they were broken at one width: lines without a logger's prefix after full
    ones, in a log whose others have one."""
    width = max((len(text) for _, text in lines), default=0)
    if not LEAST_WIDTH <= width <= MOST_WIDTH:
        return lines
    heads = [_is_head(text) for _, text in lines]
    follows = [False, *(_follows(before[1], after[1], width) for before, after in pairwise(lines))]
    broken = [follows[at] and not heads[at] for at in range(len(lines))]
    if sum(broken) < LEAST_BROKEN or sum(heads) < len(lines) * LEAST_HEADED:
        return lines
    hard = sum(len(lines[at - 1][1]) == width for at in range(len(lines)) if broken[at]) * 2 > sum(broken)
    found: list[Line] = []
    for (number, text), continues in zip(lines, broken, strict=True):
        if continues and found:
            found[-1] = (found[-1][0], f"{found[-1][1]}{'' if hard else ' '}{text}")
        else:
            found.append((number, text))
    return found


def oldest_first(lines: list[Line]) -> list[Line]:
    """Turned round where its times run backwards; its lines are then counted from the end."""
    if not runs_backwards(lines):
        return lines
    texts = [text for _, text in lines]
    if not texts[-1]:
        del texts[-1]  # after the last line's end
    return list(enumerate(reversed(texts), start=1))


def runs_backwards(lines: Sequence[Line]) -> bool:
    stamps = [found[0] for _, text in lines[:MAX_STAMPED] if (found := STAMP.search(text[:120]))]
    steps = [earlier > later for earlier, later in pairwise(stamps) if earlier != later]
    return sum(steps) >= max(LEAST_STAMPS, LEAST_BACKWARDS * len(steps))


def _is_head(text: str) -> bool:
    dressed = undress(plain(text))
    return dressed.header or bool(dressed.key) or text.startswith(BEGINS)


def _follows(before: str, after: str, width: int) -> bool:
    """Whether the first word of the line after would not have fitted behind the line before."""
    if not after:
        return False
    word = after.split(" ", 1)[0]
    return len(before) == width or (not after.startswith(" ") and len(before) + 1 + len(word) > width)
