"""How many threads compute."""

from __future__ import annotations

import os

import pytest

from appliance.engine.threads import compute_threads


@pytest.mark.parametrize(
    ("processors", "ranks", "threads"),
    [(1, 1, 1), (2, 1, 2), (3, 1, 2), (16, 1, 15), (1, 2, 1), (2, 2, 1), (4, 2, 1), (16, 2, 7), (4, 8, 1)],
)
def test_one_processor_is_left_to_the_front_door_where_two_others_compute(monkeypatch, processors, ranks, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    assert compute_threads(ranks) == threads
