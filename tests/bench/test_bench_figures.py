"""Percentiles in bounded memory, the timeline, and the plots that are made of them."""

from __future__ import annotations

import math
import random

import pytest

from appliance.bench import timeline
from appliance.bench.distribution import Distribution
from appliance.bench.plots import histogram, throughput
from appliance.bench.report import Throughput, durations
from appliance.bench.timeline import Timeline


def filled(values) -> Distribution:
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    return distribution


def test_percentiles_are_within_half_a_percent_in_memory_that_does_not_grow():
    rng = random.Random(0)
    values = sorted(rng.lognormvariate(-4, 1.5) for _ in range(100_000))
    found = filled(values)
    for percent in (50, 90, 95, 99):
        exact = values[math.ceil(len(values) * percent / 100) - 1]
        assert found.percentile(percent) == pytest.approx(exact, rel=0.006)
    assert found.mean == pytest.approx(sum(values) / len(values))
    assert (found.least, found.most) == (values[0], values[-1])
    assert len(found._buckets) < 2000


@pytest.mark.parametrize("values", [[], [0.0], [0.25], [0.0, 1e-9, 5000.0]])
def test_few_and_extreme_durations_have_figures_too(values):
    row = durations(filled(values))
    assert row.count == len(values)
    assert sum(count for *_, count in row.histogram) == len(values)
    if values:
        assert row.least <= row.p50 <= row.p99 <= row.most
        plot = histogram(row)
        assert all(0 <= bar.left <= 100 and bar.height <= 100 for bar in plot.bars)
        assert all(-1e-6 <= mark.at <= 100 + 1e-6 for mark in plot.marks)


def test_a_timeline_doubles_its_steps_and_loses_nothing(monkeypatch):
    monkeypatch.setattr(timeline, "MOST_BINS", 8)
    line = Timeline(10.0)
    for second in range(100):
        line.add([10.0 + second, 10.5 + second], 4, 10.5 + second)
    assert len(line.tokens) <= 8
    assert sum(line.tokens) == pytest.approx(400)
    assert sum(line.answers) == 100
    assert line.step_s >= 100 / 8


def test_throughput_is_of_the_time_that_the_last_step_lasted():
    even = throughput(Throughput(step_s=1.0, output_tokens=[100, 100, 70], answers=[]), 2.7)
    assert {point.split(",")[1] for point in even.points.split()} == {"0.00"}
    short = throughput(Throughput(step_s=1.0, output_tokens=[100, 100, 10], answers=[]), 2.1)
    assert {point.split(",")[1] for point in short.points.split()} == {"0.00"}
    assert [tick.text for tick in even.y_ticks] == ["50", "100"]
