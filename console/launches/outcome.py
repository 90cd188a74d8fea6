"""The outcome of a launch: its kind of end, one sentence, its cause."""

from __future__ import annotations

import enum
from typing import NamedTuple

from appliance.launches.states import ENDED
from appliance.protocol import LaunchRecord, Phase, PhaseRecord, Severity, State
from console.formats import counted, progress, seconds

REFUSED = "refused"
"""The word, in lists too, for a launch that preflight refused."""

CUT_OFF = "cut-off"
"""The word, in lists too, for a launch whose front door was killed."""

CRASH_LOOP = "crash-loop"
"""The finding, or the family of the diagnosis, by which whatever restarts the engine says that it has given up."""


class Kind(enum.StrEnum):
    RUNNING = "running"
    REFUSED = "refused"
    CRASH_LOOP = "crash-loop"
    FAILED = "failed"
    FAILED_SERVING = "failed-serving"
    HUNG = "hung"
    HUNG_SERVING = "hung-serving"
    CUT_OFF = "cut-off"
    STOPPED = "stopped"
    STOPPED_STARTING = "stopped-starting"


class Face(NamedTuple):
    """How a kind is shown: the state whose mark it has, the word beside it, and the filter that finds it."""

    mark: str
    word: str
    group: str


class Standing(NamedTuple):
    """How a launch stands, from its state alone: the state whose mark it has, and the word beside it."""

    mark: str
    word: str


FACES: dict[Kind, Face] = {
    Kind.REFUSED: Face("failed", REFUSED, "refused"),
    Kind.CRASH_LOOP: Face("failed", "given up", "refused"),
    Kind.FAILED: Face("failed", "failed", "failed"),
    Kind.FAILED_SERVING: Face("failed", "failed while serving", "failed"),
    Kind.HUNG: Face("hung", "hung", "failed"),
    Kind.HUNG_SERVING: Face("hung", "hung while serving", "failed"),
    Kind.CUT_OFF: Face("failed", "cut off", "failed"),
    Kind.STOPPED: Face("stopped", "stopped", "good"),
    Kind.STOPPED_STARTING: Face("stopped", "stopped", "stopped"),
}
"""One row per kind of end; a running launch shows its state."""

GROUPS = {
    "good": "Became ready",
    "failed": "Failed, hung or cut off",
    "refused": "Refused",
    "stopped": "Stopped before ready",
    "running": "Running",
}
"""What the list can be filtered by."""

WENT_WRONG = frozenset({"failed", "refused"})
"""The groups of launches that need attention."""


class Outcome(NamedTuple):
    kind: Kind
    mark: str
    word: str
    group: str

    @property
    def went_wrong(self) -> bool:
        return self.group in WENT_WRONG


def listed_state(record: LaunchRecord) -> str:
    """What lists know a launch by: its state, or REFUSED or CUT_OFF."""
    if record.cut_off:
        return CUT_OFF
    return REFUSED if record.state is State.FAILED and refused(record) else record.state.value


def standing(state: str, *, runs: bool) -> Standing:
    """Of a launch in a list, by its `listed_state`. `runs`: it may still be running if that is not an end."""
    ended = state in ENDED or state == REFUSED
    if state == CUT_OFF or not (ended or runs):
        return Standing(FACES[Kind.CUT_OFF].mark, FACES[Kind.CUT_OFF].word)
    return Standing(state, state)


def kind_of(record: LaunchRecord, *, runs: bool) -> Kind:
    if runs:
        return Kind.RUNNING
    served = record.ready_after_s is not None
    if record.state not in ENDED or record.cut_off:
        return Kind.CUT_OFF
    if record.state is State.STOPPED:
        return Kind.STOPPED if served else Kind.STOPPED_STARTING
    if record.state is State.HUNG:
        return Kind.HUNG_SERVING if served else Kind.HUNG
    if gave_up(record):
        return Kind.CRASH_LOOP
    if served:
        return Kind.FAILED_SERVING
    return Kind.REFUSED if refused(record) else Kind.FAILED


def outcome(record: LaunchRecord, *, runs: bool) -> Outcome:
    kind = kind_of(record, runs=runs)
    if kind is Kind.RUNNING:
        return Outcome(kind, record.state, record.state, "running")
    return Outcome(kind, *FACES[kind])


def refused(record: LaunchRecord) -> bool:
    """Whether preflight refused it, so that nothing was started."""
    found = any(finding.severity is Severity.ERROR for finding in record.findings)
    return found and all(phase.phase == Phase.PREFLIGHT for phase in record.phases)


def gave_up(record: LaunchRecord) -> bool:
    """It was not started again, or not brought up again, since it had failed too often."""
    if record.diagnosis is not None and record.diagnosis.family == CRASH_LOOP:
        return True
    return any(finding.id == CRASH_LOOP and finding.severity is Severity.ERROR for finding in record.findings)


def broken_phase(record: LaunchRecord) -> PhaseRecord | None:
    """The phase in which a launch ended that was never ready."""
    if record.ready_after_s is not None:
        return None
    failed = (phase for phase in record.phases if phase.outcome == "failed")
    unfinished = (phase for phase in record.phases if phase.outcome is None)
    return next(failed, None) or next(unfinished, None)


def cause(record: LaunchRecord) -> str:
    """Why it failed, in one sentence; empty if unknown."""
    if record.diagnosis:
        return record.diagnosis.summary
    errors = (finding.message for finding in record.findings if finding.severity is Severity.ERROR)
    return next(errors, "" if record.state is State.READY else record.reason)


def signature(record: LaunchRecord) -> str | None:
    """A key that launches with the same failure share."""
    if record.diagnosis and (record.diagnosis.cause or record.diagnosis.family):
        return f"{record.diagnosis.family}/{record.diagnosis.cause}"
    return next((finding.id for finding in record.findings if finding.severity is Severity.ERROR), None)


def sentence(record: LaunchRecord, *, runs: bool, requests_cut: int = 0) -> str:
    """What happened. `requests_cut`: how many requests were running when it ended, if known."""
    kind = kind_of(record, runs=runs)
    took = seconds(max(0.0, (record.ended or record.since) - record.started))
    served = seconds(max(0.0, (record.ended or record.since) - record.started - (record.ready_after_s or 0.0)))
    cut = f" {counted(requests_cut, 'request was', 'requests were')} cut off." if requests_cut else ""
    where = _where(record)
    match kind:
        case Kind.RUNNING:
            return _now(record)
        case Kind.REFUSED:
            untouched = "; the running engine is unaffected" if record.attempt else ""
            return f"Refused in preflight after {took}: nothing was started{untouched}."
        case Kind.CRASH_LOOP:
            return "Not started: this revision failed too often within a short time."
        case Kind.CUT_OFF:
            heard = f"after serving for {served}" if record.ready_after_s is not None else f"{took} after its start"
            return f"Cut off{where}: its process ended without a message, {heard}.{cut}"
        case Kind.HUNG:
            return f"Hung{where}: it made no more progress and was ended after {took}."
        case Kind.HUNG_SERVING | Kind.FAILED_SERVING:
            verb = "Hung" if kind is Kind.HUNG_SERVING else "Failed"
            return f"{verb} while serving, {served} after it became ready.{cut}"
        case Kind.STOPPED:
            if record.reason:
                return f"{record.reason} It had served for {served}."
            return f"Stopped on request after serving for {served}.{cut}"
        case Kind.STOPPED_STARTING:
            why = record.reason or "Stopped on request."
            return f"{why} It had been starting for {took}."
        case Kind.FAILED:
            return f"Failed after {took}{where}."


def _where(record: LaunchRecord) -> str:
    phase = broken_phase(record)
    return f", in “{phase.phase}”" if phase else ""


def _now(record: LaunchRecord) -> str:
    if record.state is State.READY:
        return f"Serving. First token after {seconds(record.ready_after_s)}."
    if record.state is State.DRAINING:
        return "Finishing running requests before it stops."
    running = next((phase for phase in reversed(record.phases) if phase.outcome is None), None)
    if running is None:
        return "Starting."
    told = progress(running)
    return f"In phase {running.phase}{f', {told}' if told else ''}."
