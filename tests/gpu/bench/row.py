"""One line of the benchmark: an op at one shape, by each of its backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`run` has one call a backend, ours under "triton"; `bytes` are those that must be moved (each input read once,
    each output written once), `flops` those that must be done. `goal` is a share of the ceiling named by `ceiling`
    ("copy", "bf16", "fp8"), or, with `goal_against`, of the speed of that backend in `run`; None where there is only a
    figure."""

    op: str
    shape: str
    run: Mapping[str, Callable[[], object]]
    bytes: int = 0
    flops: float = 0.0
    goal: float | None = None
    ceiling: str = "copy"
    goal_against: str | None = None
