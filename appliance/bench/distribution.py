"""Durations in bounded memory: counted in buckets that each are one percent wider than the one before."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

GROWTH: Final = 1.01
LEAST_S: Final = 1e-6
_LOG_GROWTH: Final = math.log(GROWTH)


class Distribution:
    """Percentiles are within half a percent of the exact ones; mean, least and most are exact."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = 0.0
        self._buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self.least = min(self.least, seconds)
        self.most = max(self.most, seconds)
        self._buckets[_bucket(seconds)] += 1

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """The least duration that `percent` of all do not pass; 0 where there are none."""
        rank = max(math.ceil(self.count * percent / 100), 1)
        for bucket, count in sorted(self._buckets.items()):
            rank -= count
            if rank <= 0:
                return min(max(_from(bucket + 0.5), self.least), self.most)
        return 0.0

    def histogram(self, most_bars: int) -> list[tuple[float, float, int]]:
        """(from, to, how many), in steps of as many buckets each, from the least to the most."""
        if not self.count:
            return []
        first, last = min(self._buckets), max(self._buckets)
        step = -(-(last - first + 1) // most_bars)
        counts = [0] * ((last - first) // step + 1)
        for bucket, count in self._buckets.items():
            counts[(bucket - first) // step] += count
        return [(_from(first + i * step), _from(first + (i + 1) * step), count) for i, count in enumerate(counts)]


def _bucket(seconds: float) -> int:
    return int(math.log(seconds / LEAST_S) / _LOG_GROWTH) if seconds > LEAST_S else 0


def _from(bucket: float) -> float:
    return LEAST_S * math.exp(bucket * _LOG_GROWTH)
