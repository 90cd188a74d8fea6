"""A launch's record: from its events where `launch.json` is missing, behind or damaged, and from older versions."""

from __future__ import annotations

import msgspec

from appliance.launches.states import ENDED
from appliance.protocol import (
    DiagnosisReport,
    ErrorLogged,
    Event,
    FindingReport,
    LaunchRecord,
    PhaseChange,
    PhaseRecord,
    ProcessEnd,
    ProcessEnded,
    State,
    StateChange,
)

# The reason, and the only sign, of a launch that was cut off, in a record without `cut_off`.
_CUT_OFF_REASON = "It was cut off: the front door was killed, or the machine went down."


def upgrade(record: LaunchRecord) -> None:
    """Fills in, in place, what an older version did not write."""
    if record.reason == _CUT_OFF_REASON:
        record.cut_off = True


def folded(events: list[Event], record: LaunchRecord | None, *, launch_id: str, started: float) -> LaunchRecord:
    """The launch as its events tell it; what they do not tell (or no longer: a cut file) comes from `record`."""
    first = events[0].time if events else started
    told = LaunchRecord(id=launch_id, profile="", started=first, since=first)
    if record is not None:
        told = msgspec.structs.replace(
            told,
            profile=record.profile,
            revision=record.revision,
            engine=record.engine,
            started=record.started,
            exit_status=record.exit_status,
            attempt=record.attempt,
            restart_of=record.restart_of,
            requested_by=record.requested_by,
            returned_after=record.returned_after,
            cut_off=record.cut_off,
        )
    told.phases, told.findings, told.process_ends = [], [], []
    for event in events:
        _apply(told, event)
    if record is None:
        return told
    if told.ready_after_s is not None and record.ready_after_s is not None:
        told.ready_after_s = record.ready_after_s  # by a clock that nobody sets, and what everyone else is told
    if record.since > told.since or not any(isinstance(event.body, StateChange) for event in events):
        for name in ("state", "since", "reason", "ended", "ready_after_s"):
            setattr(told, name, getattr(record, name))
    told.phases = told.phases or record.phases
    told.findings = told.findings or record.findings
    told.process_ends = told.process_ends or record.process_ends
    told.first_error = told.first_error or record.first_error
    told.diagnosis = told.diagnosis or record.diagnosis
    told.reason = told.reason or record.reason
    return told


def _apply(told: LaunchRecord, event: Event) -> None:
    match event.body:
        case StateChange(state=state, reason=reason):
            told.state, told.since, told.reason = state, event.time, reason
            if state is State.READY and told.ready_after_s is None:
                told.ready_after_s = event.time - told.started
            told.ended = event.time if state in ENDED else None
        case PhaseChange() as change:
            _apply_phase(told.phases, change, event.time)
        case FindingReport(finding=finding):
            told.findings.append(finding)
        case DiagnosisReport(diagnosis=diagnosis):
            told.diagnosis = diagnosis
        case ErrorLogged(line=line):
            told.first_error = line
        case ProcessEnded(end=end):
            note_end(told.process_ends, end)


def note_end(ends: list[ProcessEnd], end: ProcessEnd) -> None:
    """In place of what was known of the same end."""
    for at, known in enumerate(ends):
        if (known.pid, known.time) == (end.pid, end.time):
            ends[at] = end
            return
    ends.append(end)


def _apply_phase(phases: list[PhaseRecord], change: PhaseChange, time: float) -> None:
    for phase in reversed(phases):
        if phase.phase == change.phase and phase.outcome is None:
            phase.seconds, phase.progress, phase.outcome = change.seconds, change.progress, change.outcome
            return
    phases.append(
        PhaseRecord(
            phase=change.phase,
            started=time - change.seconds,
            seconds=change.seconds,
            progress=change.progress,
            outcome=change.outcome,
        )
    )
