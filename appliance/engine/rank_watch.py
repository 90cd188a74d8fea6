"""When a rank counts as hung: the others have waited for it for longer than anything that ranks did lately. Pure: words
and time are the caller's."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from appliance.models.rank_progress import Doing, Place, place_of

# What a rank that the others wait for may take at least; seen, told and ended within two seconds.
LATE_S: Final = 1.7
# How long all may wait for their devices, or for each other: the largest step takes seconds on the slowest GPU.
ALL_WAIT_S: Final = 30.0
# A limit is at least so many times the longest that was seen within `LATELY_S`.
TIMES_LONGEST: Final = 10.0
LATELY_S: Final = 600.0
# Where more time lies between two looks, this process was not running either: suspended, or the machine is swapping.
MISSED_S: Final = 1.0
# By so much more time is given to one that is found to work, and again each time.
MORE_PATIENCE: Final = 4.0


class Hang(NamedTuple):
    """`ranks` hang, for which all others wait; or no rank computes, and these wait (`all_wait`)."""

    ranks: tuple[int, ...]
    seconds: float
    all_wait: bool = False


@dataclass
class _Seen:
    word: int
    since: float
    last: float

    @property
    def seconds(self) -> float:
        """How long it certainly stood so."""
        return self.last - self.since


@dataclass
class _Longest:
    """What was long lately; `found` are pairs of when and how long, in falling order of length."""

    found: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, now: float, seconds: float) -> None:
        while self.found and self.found[-1][1] <= seconds:
            self.found.pop()
        self.found.append((now, seconds))

    def at(self, now: float) -> float:
        while self.found and now - self.found[0][0] > LATELY_S:
            self.found.popleft()
        return self.found[0][1] if self.found else 0.0


class RankWatch:
    """Look some times a second: what stays longer than a look is measured, and shorter things do not matter."""

    def __init__(self) -> None:
        self._seen: list[_Seen] = []
        self._looked = 0.0
        self._longest = {Doing.COMPUTES: _Longest(), Doing.WAITS: _Longest()}
        self._patience = 1.0

    def look(self, words: Sequence[int], now: float) -> Hang | None:
        """`words` of all ranks in order, `now` in monotonic seconds."""
        if not self._seen:
            self._seen = [_Seen(word, now, now) for word in words]
        if now - self._looked > MISSED_S:
            self.excuse(now)
        self._looked = now
        for seen, word in zip(self._seen, words, strict=True):
            if seen.word == word:
                seen.last = now
                continue
            longest = self._longest.get(place_of(seen.word).doing)
            if longest is not None:
                longest.add(now, seen.seconds)
            seen.word, seen.since, seen.last = word, now, now
            self._patience = 1.0
        still = now - max(seen.since for seen in self._seen)
        return self._judge([place_of(word) for word in words], still, now)

    def excuse(self, now: float) -> None:
        """What went by does not count."""
        for seen in self._seen:
            seen.since = seen.last = now

    def be_patient(self) -> None:
        """What hangs is found to work: look at it again later."""
        self._patience *= MORE_PATIENCE

    def _judge(self, places: Sequence[Place], still: float, now: float) -> Hang | None:
        """`still` is for how long no rank has moved."""
        if any(place.doing is Doing.PREPARES for place in places):
            return None
        computing = [place.passed for place in places if place.doing is Doing.COMPUTES]
        if not computing:
            waiting = tuple(rank for rank, place in enumerate(places) if place.doing is Doing.WAITS)
            late = waiting and still >= self._limit_s(Doing.WAITS, ALL_WAIT_S, now)
            return Hang(waiting, still, all_wait=True) if late else None
        # One that is ahead of others that compute waits in a call that does not say so, as a full queue of its device.
        behind = tuple(rank for rank, place in enumerate(places) if place == (Doing.COMPUTES, min(computing)))
        if len(behind) == len(places):
            return None
        # Others that are idle wait for their next turn if it is the first rank that computes, which gives them out;
        # otherwise there may be none, and nobody waits yet.
        others = (place.doing for rank, place in enumerate(places) if rank not in behind)
        least_s = LATE_S if 0 in behind or any(doing is not Doing.IDLE for doing in others) else ALL_WAIT_S
        return Hang(behind, still) if still >= self._limit_s(Doing.COMPUTES, least_s, now) else None

    def _limit_s(self, doing: Doing, least_s: float, now: float) -> float:
        return self._patience * max(least_s, TIMES_LONGEST * self._longest[doing].at(now))
