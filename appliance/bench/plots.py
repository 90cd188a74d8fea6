"""A report's plots, in percent of their box: what is drawn is stretched to it, and the words beside it are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from appliance.bench.report import Durations, Throughput
from appliance.bench.words import duration, on_axis

HEADROOM: Final = 24.0  # percent above the highest bar, for the names of percentiles
MOST_TICKS: Final = 5


class Tick(NamedTuple):
    """`at` in percent from the left, or from the bottom."""

    at: float
    text: str


class Bar(NamedTuple):
    left: float
    width: float
    height: float
    title: str


class Mark(NamedTuple):
    """A percentile: a line with its name, which stands to the left of it where there is more room."""

    at: float
    text: str
    to_the_left: bool


class Histogram(NamedTuple):
    bars: list[Bar]
    marks: list[Mark]
    ticks: list[Tick]


class Curve(NamedTuple):
    """`points` and `area` are those of an SVG polyline and polygon, with y downwards."""

    points: str
    area: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]


def histogram(row: Durations) -> Histogram:
    """On a logarithmic axis of time."""
    bins = row.histogram
    low, high = math.log(bins[0][0]), math.log(bins[-1][1])
    most = max(count for *_, count in bins)

    def at(seconds: float) -> float:
        return 100 * (math.log(max(seconds, bins[0][0])) - low) / (high - low)

    bars = [
        Bar(at(begin), at(end) - at(begin), (100 - HEADROOM) * count / most,
            f"{duration(begin)} to {duration(end)}: {count:,} ({count / row.count:.1%})")
        for begin, end, count in bins if count
    ]  # fmt: skip
    marks = [
        Mark(at(value), f"{name} {duration(value)}", at(value) > 50)
        for name, value in (("p50", row.p50), ("p99", row.p99))
    ]
    ticks = [Tick(at(value), on_axis(value)) for value in _log_ticks(bins[0][0], bins[-1][1])]
    return Histogram(bars, marks, ticks)


def throughput(told: Throughput, seconds: float) -> Curve:
    """Output tokens a second, over the time of the load."""
    rates = _rates(told.output_tokens, told.step_s, seconds)
    top = _nice(max(rates))
    width = 100 / len(rates)
    corners = [(width * at, 100 - 100 * rate / top) for at, rate in enumerate(rates)]
    steps = [point for x, y in corners for point in ((x, y), (x + width, y))]
    points = " ".join(f"{x:.2f},{y:.2f}" for x, y in steps)
    step = _nice(seconds / MOST_TICKS)
    x_ticks = [Tick(100 * n * step / seconds, f"{n * step:,g} s") for n in range(int(seconds / step) + 1)]
    return Curve(
        points=points,
        area=f"0,100 {points} 100,100",
        x_ticks=x_ticks,
        y_ticks=[Tick(100 * part, f"{top * part:,g}") for part in (0.5, 1)],
    )


def _rates(amounts: Sequence[float], step_s: float, seconds: float) -> list[float]:
    """What is left of the last step counts with its own length; where that is short, with the step before."""
    lengths = [step_s] * len(amounts)
    lengths[-1] = max(seconds - step_s * (len(amounts) - 1), 1e-3)
    parts = list(amounts)
    if len(parts) > 1 and lengths[-1] < step_s / 2:
        parts[-2:], lengths[-2:] = [sum(parts[-2:])], [sum(lengths[-2:])]
    return [amount / length for amount, length in zip(parts, lengths, strict=True)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Round durations between the two: 1, 2 and 5 of each power of ten, or fewer where that is many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]
        if len(found) <= MOST_TICKS:
            return found
    return found[:: -(-len(found) // MOST_TICKS)]


def _nice(value: float) -> float:
    """The least of 1, 2, 2.5 and 5 times a power of ten that is not below `value`."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit >= value * (1 - 1e-9))
