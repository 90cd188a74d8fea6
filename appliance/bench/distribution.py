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
                return min(max(_middle(bucket), self.least), self.most)
        return 0.0

    def histogram(self, bars: int) -> list[tuple[float, float, int]]:
        """(from, to, how many) in `bars` equal steps of the logarithm, from the least to the most."""
        if not self.count:
            return []
        low = math.log(max(self.least, LEAST_S)) - _LOG_GROWTH
        step = (math.log(max(self.most, LEAST_S)) + _LOG_GROWTH - low) / bars
        counts = [0] * bars
        for bucket, count in self._buckets.items():
            at = (math.log(_middle(bucket)) - low) / step
            counts[min(max(int(at), 0), bars - 1)] += count
        return [(math.exp(low + i * step), math.exp(low + (i + 1) * step), count) for i, count in enumerate(counts)]


def _bucket(seconds: float) -> int:
    return int(math.log(seconds / LEAST_S) / _LOG_GROWTH) if seconds > LEAST_S else 0


def _middle(bucket: int) -> float:
    return LEAST_S * math.exp((bucket + 0.5) * _LOG_GROWTH)
