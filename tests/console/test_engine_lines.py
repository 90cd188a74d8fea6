"""What the terminal of `ingot up` says about the engine: each change once."""

from __future__ import annotations

from appliance.protocol import ApplianceState, Diagnosis, Finding, LaunchRecord, Severity, State
from console.engine_control.base import EngineStatus
from console.engine_lines import Change, news
from console.live.view import EngineView


def view(state: State, launch: str = "1", profile: str = "chat", **fields) -> EngineView:
    """Of a front door that answers."""
    record = LaunchRecord(id=launch, profile=profile, revision="r1", started=1.0, state=state, **fields)
    appliance = ApplianceState(state=state, since=1.0, version="0", launch=record)
    return EngineView(state=state, reachable=True, appliance=appliance, control=EngineStatus(running=True))


def gone(state: State, problem: Finding | None = None, ended: str | None = None, active: str = "chat") -> EngineView:
    """Of a front door that does not."""
    control = EngineStatus(running=False, problem=problem, ended=ended)
    return EngineView(state=state, control=control, active=(active, "r1"))


def told(*views: EngineView) -> list[tuple[str, str]]:
    changes: list[Change] = []
    for each in views:
        change = news(changes[-1] if changes else None, each)
        if change is not None:
            changes.append(change)
    return [(change.state.value, change.launch) for change in changes]


def test_each_change_is_told_once():
    ready = view(State.READY, ready_after_s=1.5)
    assert told(
        EngineView(),
        gone(State.STARTING),
        view(State.PREFLIGHT),
        view(State.STARTING),
        ready,
        gone(State.STARTING),  # an answer that came late
        ready,
        view(State.DRAINING),
        view(State.STOPPED),
        gone(State.STOPPED, ended="exit status 0"),
        view(State.PREFLIGHT, "2", "other"),
        view(State.READY, "2", "other"),
    ) == [("starting", "1"), ("ready", "1"), ("stopped", "1"), ("starting", "2"), ("ready", "2")]


def test_a_failure_is_told_with_its_cause():
    diagnosis = Diagnosis(summary="The GPU is on fire.")
    change = news(None, view(State.FAILED, diagnosis=diagnosis))
    assert change is not None
    assert change.profile == "chat r1"
    assert diagnosis.summary in change.text
    killed = Finding(id="engine-killed", severity=Severity.ERROR, message="Killed.")
    change = news(change, gone(State.STOPPED, ended="exit status 0"))
    change = news(change, gone(State.FAILED, killed, active="other"))
    assert change is not None
    assert change.profile == "chat r1"
    assert killed.message in change.text


def test_a_restart_by_itself_does_not_read_like_one_that_was_asked_for():
    asked, by_itself = view(State.STARTING, "2"), view(State.STARTING, "2", restart_of="1")
    assert told(view(State.FAILED), by_itself) == [("failed", "1"), ("starting", "2")]
    assert news(None, asked) != news(None, by_itself)
