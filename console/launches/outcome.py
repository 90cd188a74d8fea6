"""What became of a launch, in words: its outcome, one sentence, its cause."""

from __future__ import annotations

from typing import NamedTuple

from appliance.protocol import LaunchRecord, Phase, PhaseRecord, Severity, State
from console.formats import progress, seconds
from console.launches.folder import ENDED


class Outcome(NamedTuple):
    """`mark` is the state whose mark is shown, `word` what stands beside it."""

    mark: str
    word: str
    group: str


GROUPS = {
    "good": "Became ready",
    "failed": "Failed or hung",
    "refused": "Refused in preflight",
    "stopped": "Stopped before it was ready",
    "running": "Under way",
}
"""What the list can be filtered by."""


def under_way(record: LaunchRecord, current: str | None, *, engine_runs: bool) -> bool:
    """Whether the launch goes on: it has not ended, it is the engine's, and there is an engine. One whose front door
    was killed has no end in its folder, and would seem to go on for ever."""
    return record.state not in ENDED and record.id == current and engine_runs


def outcome(record: LaunchRecord, *, runs: bool) -> Outcome:
    if runs:
        return Outcome(record.state, record.state, "running")
    if record.state not in ENDED:
        return Outcome("stopped", "cut off", "good" if record.ready_after_s is not None else "failed")
    if refused(record):
        return Outcome("failed", "refused", "refused")
    if record.ready_after_s is not None:
        return Outcome(record.state, record.state, "good" if record.state is State.STOPPED else "failed")
    return Outcome(record.state, record.state, "stopped" if record.state is State.STOPPED else "failed")


def refused(record: LaunchRecord) -> bool:
    """Preflight said no: nothing was started."""
    return record.state is State.FAILED and all(phase.phase == Phase.PREFLIGHT for phase in record.phases)


def broken_phase(record: LaunchRecord) -> PhaseRecord | None:
    """The phase in which a launch ended that was never ready."""
    if record.ready_after_s is not None:
        return None
    failed = (phase for phase in record.phases if phase.outcome == "failed")
    unfinished = (phase for phase in record.phases if phase.outcome is None)
    return next(failed, None) or next(unfinished, None)


def cause(record: LaunchRecord) -> str:
    """Why it did not go well, in one sentence; empty where nothing is known."""
    if record.diagnosis:
        return record.diagnosis.summary
    errors = (finding.message for finding in record.findings if finding.severity is Severity.ERROR)
    return next(errors, "" if record.state is State.READY else record.reason)


def signature(record: LaunchRecord) -> str | None:
    """What launches that failed alike have in common."""
    if record.diagnosis and (record.diagnosis.cause or record.diagnosis.family):
        return f"{record.diagnosis.family}/{record.diagnosis.cause}"
    return next((finding.id for finding in record.findings if finding.severity is Severity.ERROR), None)


def sentence(record: LaunchRecord, *, runs: bool) -> str:
    """What happened."""
    if runs:
        return _now(record)
    where = _where(record)
    took = seconds(max(0.0, (record.ended or record.since) - record.started))
    if record.state not in ENDED:
        return f"Cut off{where}: its process ended without a word. It was last heard of {took} after its start."
    if refused(record):
        untouched = "; the running engine was not touched" if record.attempt else ""
        return f"Refused in preflight after {took}: nothing was started{untouched}."
    if record.ready_after_s is not None:
        served = seconds(max(0.0, (record.ended or record.since) - record.started - record.ready_after_s))
        return f"Ready after {seconds(record.ready_after_s)}, {_ENDS[record.state]} after it had served for {served}."
    return f"{_ENDS[record.state].capitalize()} after {took}{where}."


_ENDS = {State.STOPPED: "stopped", State.FAILED: "failed", State.HUNG: "hung"}


def _where(record: LaunchRecord) -> str:
    phase = broken_phase(record)
    return f", in “{phase.phase}”" if phase else ""


def _now(record: LaunchRecord) -> str:
    if record.state is State.READY:
        return f"The first token came after {seconds(record.ready_after_s)}; it has served since."
    if record.state is State.DRAINING:
        return "It finishes the requests that run, then stops."
    running = next((phase for phase in reversed(record.phases) if phase.outcome is None), None)
    if running is None:
        return "It is being started."
    told = progress(running)
    return f"Under way: {running.phase}{f', {told}' if told else ''}."
