"""How long the phase that runs may take: what it took last time, and when it counts as hung."""

from __future__ import annotations

from typing import NamedTuple

from appliance.engine_process.deadlines import FLOORS_S, TIMES_LAST_GOOD
from appliance.engines import VLLM, engine_named
from appliance.protocol import LaunchRecord, State
from appliance.vllm import deadlines as vllm_deadlines

OWN_FLOORS_S = {VLLM.name: vllm_deadlines.FLOORS_S}
"""Of engines with floors of their own; a record names its engine, but has no launch object to ask."""

COMING_UP = frozenset({State.PREFLIGHT, State.STARTING})


class Expectation(NamedTuple):
    """`last_s` is how long the phase took in the last good launch; `limit_s` is when it counts as hung, measured
    without progress if there was no such launch. None: unknown."""

    phase: str
    started: float
    last_s: float | None
    last_whole_s: float | None
    limit_s: float | None


def expectation(record: LaunchRecord, last_good: LaunchRecord | None) -> Expectation | None:
    """None if no phase is running."""
    running = next((phase for phase in reversed(record.phases) if phase.outcome is None), None)
    if record.state not in COMING_UP or running is None:
        return None
    took = {phase.phase: phase.seconds for phase in last_good.phases} if last_good else {}
    last_s = took.get(running.phase)
    floor = OWN_FLOORS_S.get(engine_named(record.engine).name, FLOORS_S).get(running.phase)
    limit_s = None if floor is None else max(floor, TIMES_LAST_GOOD * (last_s or 0.0))
    return Expectation(running.phase, running.started, last_s, last_good.ready_after_s if last_good else None, limit_s)
