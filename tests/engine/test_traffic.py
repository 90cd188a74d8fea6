"""Some seconds of `python -m tests.engine.traffic`, for every kind of cache."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

from tests.engine.traffic import KINDS, serve

SECONDS = float(os.environ.get("INGOT_FUZZ_SECONDS", "1"))
"""For each kind."""


@pytest.mark.parametrize("kind", KINDS)
def test_no_shortage_raises_and_nothing_is_left_behind(kind):
    until = time.process_time() + SECONDS
    found = Counter[str]()
    while time.process_time() < until or found["sites"] < 4:
        found += serve(KINDS[kind], 1000 + found["sites"], 40)
        found["sites"] += 1
    assert found["preemptions"] > 0
    assert found["given up"] > 0
    assert found["found"] > 0
