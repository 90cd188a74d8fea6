"""Which launch state may follow which. The supervisor is the only writer and enforces this table."""

from __future__ import annotations

from appliance.protocol import LaunchRecord, State

TRANSITIONS: dict[State, frozenset[State]] = {
    State.IDLE: frozenset({State.PREFLIGHT, State.STOPPED}),
    State.PREFLIGHT: frozenset({State.STARTING, State.FAILED, State.HUNG, State.STOPPED}),
    State.STARTING: frozenset({State.READY, State.FAILED, State.HUNG, State.STOPPED}),
    State.READY: frozenset({State.DRAINING, State.FAILED, State.HUNG, State.STOPPED}),
    State.DRAINING: frozenset({State.STOPPED, State.FAILED, State.HUNG}),
    # An ended launch never moves again; the next attempt is a launch of its own.
    State.STOPPED: frozenset(),
    State.FAILED: frozenset(),
    State.HUNG: frozenset(),
}

ENDED = frozenset(state for state, following in TRANSITIONS.items() if not following)


def under_way(record: LaunchRecord, current: str | None, *, engine_runs: bool) -> bool:
    """Whether the launch is still running: it has not ended, it is the engine's, and there is an engine. If the front
    door was killed, the folder has no end, and the launch would otherwise seem to run for ever."""
    return record.state not in ENDED and record.id == current and engine_runs


def check_transition(before: State, after: State) -> None:
    """An assertion, not an error: only our own code changes a state."""
    assert after in TRANSITIONS[before], f"a launch cannot go from {before} to {after}"
