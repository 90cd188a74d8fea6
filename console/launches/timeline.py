"""A launch's events as rows: what happened, and how long after the start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from appliance.launches.process_ends import how
from appliance.protocol import (
    DiagnosisReport,
    ErrorLogged,
    Event,
    FindingReport,
    Phase,
    PhaseChange,
    PhaseRecord,
    ProcessEnded,
    StateChange,
)
from console.formats import progress, seconds

BRIEF_S: Final = 0.05
"""A skipped phase that took less was never entered."""


class TimelineEntry(NamedTuple):
    sequence: int
    time: float
    after_s: float
    kind: str
    text: str
    bad: bool


def timeline(events: Iterable[Event], started: float) -> list[TimelineEntry]:
    """In order. A phase is one row, at its end, or at its beginning if it has not ended. A cause shown in its own card
    is not repeated, nor are the processes that ended after the engine had."""
    rows = []
    events = list(events)
    ended = {event.body.phase for event in events if isinstance(event.body, PhaseChange) and event.body.outcome}
    begun = set(ended)
    deaths = [event.body.end for event in events if isinstance(event.body, ProcessEnded)]
    latest = {(end.pid, end.time): end for end in deaths}  # the kernel's record comes with a later report
    diagnosed = [event for event in events if isinstance(event.body, DiagnosisReport)]
    causes = [event.body.diagnosis.summary for event in events if isinstance(event.body, DiagnosisReport)]
    for event in events:
        text, bad = "", False
        kind = "event"
        match event.body:
            case StateChange(state=state, reason=reason):
                kind, text = "state", str(state) if not reason or repeats(reason, causes) else f"{state}: {reason}"
                bad = state in ("failed", "hung")
            case PhaseChange() as change:
                if change.outcome is None and change.phase in begun:
                    continue
                begun.add(change.phase)
                kind, text = "phase", _phase(change)
                bad = change.outcome == "failed"
            case FindingReport(finding=finding):
                kind, text = "finding", f"{finding.severity}: {finding.message}"
                bad = finding.severity == "error"
            case ErrorLogged(line=line):
                kind, text = "log", f"first error, line {line.number:,}: {line.text}"
            case ProcessEnded(end=end) if not end.aftermath and (end.pid, end.time) in latest:
                end = latest.pop((end.pid, end.time))
                kind, text, bad = "process", f"{end.name} ({end.pid}) ended: {how(end)}", bool(end.status)
            case DiagnosisReport() if event is diagnosed[-1]:  # once more when its fix has passed preflight
                kind, text, bad = "diagnosis", "see the cause above", True
        if text:
            rows.append(TimelineEntry(event.sequence, event.time, max(0.0, event.time - started), kind, text, bad))
    return rows


def repeats(reason: str, causes: Iterable[str]) -> bool:
    """Whether a reason repeats one of the causes."""
    return any(reason in cause or cause in reason for cause in causes)


def _phase(change: PhaseChange) -> str:
    if change.outcome is None:
        return f"{change.phase} started"
    after = f"after {seconds(change.seconds)}"
    if change.outcome == "skipped":
        return f"{change.phase} skipped" if change.seconds < BRIEF_S else f"{change.phase} cut short {after}"
    if change.phase == Phase.READY and change.outcome == "done":
        return change.phase
    told = progress(PhaseRecord(phase=change.phase, started=0.0, progress=change.progress))
    how = f"took {seconds(change.seconds)}" if change.outcome == "done" else f"{change.outcome} {after}"
    return f"{change.phase} {how}{f', {told}' if told else ''}"
