"""The engine as the console last saw it: what the front door says, or else what runs the engine."""

from __future__ import annotations

import msgspec

from appliance.protocol import ApplianceState, LaunchRecord, Load, Severity, State
from console.engine_control.base import EngineStatus

WORDS: dict[State, str] = {
    State.IDLE: "idle",
    State.PREFLIGHT: "preflight",
    State.STARTING: "starting",
    State.READY: "ready",
    State.DRAINING: "draining",
    State.STOPPED: "stopped",
    State.FAILED: "failed",
    State.HUNG: "hung",
}


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """`reachable`: the front door answers. `active` names the active revision ("qwen3-8b", "r7"); `roll_back_to` the
    last revision that was ready, where that is another one."""

    state: State = State.IDLE
    since: float | None = None
    reachable: bool = False
    control: EngineStatus = EngineStatus(running=False)
    problem: str = ""
    appliance: ApplianceState | None = None
    active: tuple[str, str] | None = None
    roll_back_to: tuple[str, str] | None = None

    @property
    def word(self) -> str:
        return WORDS[self.state]

    @property
    def launch(self) -> LaunchRecord | None:
        return self.appliance.launch if self.appliance else None

    @property
    def attempt(self) -> LaunchRecord | None:
        return self.appliance.attempt if self.appliance else None

    @property
    def load(self) -> Load:
        return self.appliance.load if self.appliance else Load()

    @property
    def models(self) -> list[str]:
        return self.appliance.models if self.appliance else []

    @property
    def ready(self) -> bool:
        return self.state is State.READY

    @property
    def cause(self) -> str:
        """Why it failed, in a sentence: the diagnosis, else the first error that preflight found, else the reason."""
        return cause_of(self.launch) if self.launch else ""

    @property
    def share(self) -> float:
        """How much of the launch is done, for the arc that fills: phases ended of those there are."""
        if self.launch is None or not self.launch.phases:
            return 0.0
        last = self.launch.phases[-1]
        part = last.progress.done / last.progress.total if last.progress.total else 0.0
        ended = sum(phase.outcome is not None for phase in self.launch.phases)
        return min(1.0, (ended + (0.0 if last.outcome else part)) / NUM_PHASES)

    @property
    def button(self) -> str:
        """The one thing to offer now: start, stop, restart or roll-back."""
        if self.state in (State.IDLE, State.STOPPED):
            return "start"
        if self.state in (State.PREFLIGHT, State.STARTING, State.DRAINING):
            return "stop"
        if self.state in (State.FAILED, State.HUNG) and self.roll_back_to:
            return "roll-back"
        return "restart"


def cause_of(launch: LaunchRecord) -> str:
    if launch.diagnosis:
        return launch.diagnosis.summary
    errors = (finding.message for finding in launch.findings if finding.severity is Severity.ERROR)
    return next(errors, launch.reason)


NUM_PHASES = 6
"""Phases before `ready`; one more or fewer only moves the arc a little."""
