"""How far a swap is, as waiting requests are told."""

from __future__ import annotations

import enum
import math
import time
from typing import NamedTuple

from appliance.protocol import LaunchRecord


class Step(enum.StrEnum):
    CHECKING = "checking"
    DRAINING = "draining"
    STARTING = "starting"
    RETURNING = "returning"


class Stage(NamedTuple):
    """`model` is the one that is to run, or to run again."""

    step: Step
    model: str


def words(stage: Stage | None, record: LaunchRecord | None, requests: int, turn_at: float | None) -> str:
    """One line. Without a stage, the running model still has its turn, until `turn_at`."""
    if stage is None:
        left = math.ceil(turn_at - time.time()) if turn_at is not None else 0
        return f"waiting for the running model's turn to end, {left:,} s left" if left > 0 else "waiting"
    match stage.step:
        case Step.CHECKING:
            return f"checking {stage.model}"
        case Step.DRAINING:
            return f"draining, requests left: {requests:,}"
        case _:
            return f"{stage.step} {stage.model}{_phase(record)}"


def _phase(record: LaunchRecord | None) -> str:
    """`: weights 43%` of a launch that is under way."""
    phase = next((phase for phase in reversed(record.phases) if phase.outcome is None), None) if record else None
    if phase is None:
        return ""
    total = phase.progress.total
    share = f" {min(100 * phase.progress.done // total, 100)}%" if total else ""
    return f": {phase.phase}{share}"
