"""How every benchmark ends: a table, one JSON object {figure: {value, goal, ok}}, and an exit status."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """Measured several times; the median is what counts, and `goal` is the most it may be, or with `at_least` the
    least. None: shown for comparison."""

    name: str
    what: str
    values: list[float]
    goal: float | None
    unit: str = "s"
    at_least: bool = False

    @property
    def value(self) -> float:
        return round(statistics.median(self.values), 3)

    @property
    def ok(self) -> bool:
        if self.goal is None:
            return True
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def describe_machine() -> None:
    load, processors = os.getloadavg()[0], len(os.sched_getaffinity(0))
    print(f"load average {load:.1f} on {processors} processors", flush=True)
    if load > processors / 2:
        print("The machine is busy: speeds then tell how many threads each side runs, more than how fast they are; "
              "compare the processor time a token.", flush=True)  # fmt: skip


def conclude(figures: Sequence[Figure], beside: Sequence[Figure] = ()) -> int:
    """Print `figures`; 0 when every goal is met, else 1. Those `beside` them are in the JSON object alone."""
    width = max(len(figure.what) for figure in figures)
    print(f"{'':{width}} {'median':>10} {'least':>10} {'most':>10} {'goal':>10}")
    for figure in figures:
        verdict = "" if figure.ok else "   missed"
        shown = (figure.value, min(figure.values), max(figure.values), figure.goal)
        cells = ["" if value is None else f"{value:.2f} {figure.unit}" for value in shown]
        print(f"{figure.what:{width}} " + " ".join(f"{cell:>10}" for cell in cells) + verdict)
    print(json.dumps({f.name: {"value": f.value, "goal": f.goal, "ok": f.ok} for f in (*figures, *beside)}))
    return 0 if all(figure.ok for figure in figures) else 1
