"""The phase line's geometry: which segment lies where, in percent, so that a template only has to draw it."""

from __future__ import annotations

import time
from typing import NamedTuple

from appliance.launches.states import ENDED
from appliance.protocol import LaunchRecord, PhaseRecord, State
from console.formats import progress

BEFORE = "process start"
"""What comes before the first phase: the front door's own process."""
SHORTEST_S = 0.05
"""Less than this before the first phase is not drawn."""
NARROWEST = 0.7
"""Percent: a phase of a few milliseconds can still be seen."""
ROOM = 1.18
"""A running launch without one to compare with is drawn with this much more room than it has used."""
SHADES = 8
"""How many colours `phase-shade-0` and so on there are in pieces.css; no launch has more phases."""

RUNNING = frozenset({State.PREFLIGHT, State.STARTING})


class Segment(NamedTuple):
    """`x`, `width` and `filled` are percents of the whole line; `kind` is done, running, failed or skipped. `shade`
    numbers the colour that a phase of this name has in both lines and in the list."""

    name: str
    kind: str
    x: float
    width: float
    filled: float
    seconds: float
    progress: str
    shade: int


class PhaseLine(NamedTuple):
    """`unreached` names the phases of the last good launch that one which failed did not come to."""

    segments: list[Segment]
    last_good: list[Segment]
    unreached: list[str]
    seconds: float
    last_good_seconds: float | None


def phase_line(launch: LaunchRecord, last_good: LaunchRecord | None = None, now: float | None = None) -> PhaseLine:
    """Both launches on one scale. `ready` is a moment, not a phase with a length, and is left out."""
    now = time.time() if now is None else now
    phases = _phases(launch)
    lengths = [_length(phase, launch, now) for phase in phases]
    good = _phases(last_good) if last_good else []
    good_lengths = [phase.seconds for phase in good]
    used = sum(lengths)
    shades = {name: number % SHADES for number, name in enumerate(dict.fromkeys(p.phase for p in (*phases, *good)))}
    scale = max(used, sum(good_lengths), 0.001)
    if launch.state in RUNNING and scale == used:
        scale = used * ROOM
    return PhaseLine(
        segments=_lay_out(phases, lengths, scale, launch, shades),
        last_good=_lay_out(good, good_lengths, scale, last_good, shades) if last_good else [],
        unreached=_unreached(launch, phases, good),
        seconds=used,
        last_good_seconds=sum(good_lengths) if last_good else None,
    )


def _phases(launch: LaunchRecord) -> list[PhaseRecord]:
    """From the launch's own start, so that the line is as long as the launch is said to have taken."""
    phases = [phase for phase in launch.phases if phase.phase != State.READY]
    before_s = phases[0].started - launch.started if phases else 0.0
    if before_s < SHORTEST_S:
        return phases
    before = PhaseRecord(phase=BEFORE, started=launch.started, seconds=before_s, outcome="done")
    return [before, *phases]


def _unreached(launch: LaunchRecord, phases: list[PhaseRecord], good: list[PhaseRecord]) -> list[str]:
    if launch.state not in ENDED or launch.ready_after_s is not None:
        return []
    came_to = {phase.phase for phase in phases}
    return [phase.phase for phase in good if phase.phase not in came_to]


def _lay_out(
    phases: list[PhaseRecord], lengths: list[float], scale: float, launch: LaunchRecord, shades: dict[str, int]
) -> list[Segment]:
    widths = [max(NARROWEST, 100 * length / scale) for length in lengths]
    shrink = min(1.0, 100 / sum(widths)) if widths else 1.0
    segments, x = [], 0.0
    for phase, length, wide in zip(phases, lengths, widths, strict=True):
        width = wide * shrink
        kind = _kind(phase, launch)
        share = phase.progress.done / phase.progress.total if phase.progress.total else 1.0
        filled = width * min(1.0, share) if kind == "running" else width
        told = progress(phase) if kind != "done" else ""
        shade = shades[phase.phase]
        segments.append(Segment(phase.phase, kind, round(x, 2), round(width, 2), round(filled, 2), length, told, shade))
        x += width
    return segments


def _kind(phase: PhaseRecord, launch: LaunchRecord) -> str:
    if phase.outcome:
        return phase.outcome
    if launch.state in RUNNING:
        return "running"
    return "failed" if launch.state in (State.FAILED, State.HUNG) else "skipped"


def _length(phase: PhaseRecord, launch: LaunchRecord, now: float) -> float:
    """A phase that runs is as long as it has run; one cut off by the launch's end, until then."""
    if phase.outcome:
        return phase.seconds
    end = now if launch.state in RUNNING else (launch.ended or launch.since or phase.started)
    return max(phase.seconds, end - phase.started)
