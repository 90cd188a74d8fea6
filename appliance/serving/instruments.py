"""A counter and a histogram that cost next to nothing to feed: some are fed with every token. The event loop's thread
alone feeds and collects them, so they take no lock."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class PlainCounter(Collector):
    """One without labels."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._value = 0.0

    def inc(self, amount: float) -> None:
        self._value += amount

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._text, self._value)


class Histogram(Collector):
    """`buckets` are upper bounds, ascending; one without a bound follows them."""

    def __init__(self, name: str, text: str, buckets: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = list(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, itertools.accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)
