"""The engine as the console last saw it: what the front door says, or else what runs the engine."""

from __future__ import annotations

import msgspec

from appliance.protocol import ApplianceState, Finding, LaunchRecord, Load, Severity, State
from console.db.models import Launch
from console.engine_control.base import EngineEvent, EngineStatus, OutputLine
from console.formats import seconds
from console.launches.outcome import sentence

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

FAILED = frozenset({State.FAILED, State.HUNG})
"""States that want mending."""

HEADLINES: dict[State, str] = {
    State.IDLE: "Nothing runs",
    State.PREFLIGHT: "Checking {what}",
    State.STARTING: "Starting {what}",
    State.READY: "{what} is ready",
    State.DRAINING: "{what} finishes its requests",
    State.STOPPED: "{what} is stopped",
    State.FAILED: "{what} failed",
    State.HUNG: "{what} hung",
}

LAST_WORDS = 20

BUTTONS = {"container-missing": "", "container-paused": "restart", "container-restarting": "stop"}
"""What helps where a problem's fix is not to start the engine once it is mended."""


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """The engine in one immutable value; every page is drawn from it.

    `reachable`: the front door answers. `active` names the active revision ("qwen3-8b", "r7"); `roll_back_to` the last
    revision that was ready, where that is another one. `last_good` is the earlier launch of the same profile to compare
    with. `output` is what the engine's process wrote itself, while its front door says nothing; `happened` is what
    happened to that process lately. `unknown` says why what runs the engine cannot be asked. `controlled`: this console
    can start and stop the engine.
    """

    state: State = State.IDLE
    since: float | None = None
    reachable: bool = False
    control: EngineStatus = EngineStatus(running=False)
    unknown: Finding | None = None
    appliance: ApplianceState | None = None
    active: tuple[str, str] | None = None
    roll_back_to: tuple[str, str] | None = None
    recent: list[Launch] = []
    last_good: LaunchRecord | None = None
    output: list[OutputLine] = []
    happened: list[EngineEvent] = []
    url: str = ""
    controlled: bool = True

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
    def unsealed(self) -> bool:
        """Whether the engine compiles kernels as it runs."""
        return self.appliance is not None and self.appliance.sealed is False

    @property
    def ready(self) -> bool:
        return self.state is State.READY

    @property
    def headline(self) -> str:
        """The state as a line of its own."""
        what = " ".join(self.active) if self.active else "The engine"
        if self.unknown and not self.reachable:
            return f"Whether {what if self.active else 'the engine'} runs cannot be told"
        if self.problem and not self.reachable:
            return f"{what} does not run"
        if self.launch is not None:
            what = f"{self.launch.profile} {self.launch.revision}".rstrip()
        return HEADLINES[self.state].format(what=what)

    @property
    def sentence(self) -> str:
        """What stands behind the state, and what to do."""
        if not self.reachable:
            return self._sentence_without_front_door()
        if self.launch is not None and self.state in FAILED:
            return where_it_ended(self.launch)
        if self.ready and self.launch is not None and self.launch.ready_after_s is not None:
            return f"The first token came after {seconds(self.launch.ready_after_s)}."
        if self.state in (State.IDLE, State.STOPPED):
            return "Start it with the button above." if self.active else "Activate a profile to give it a model."
        return self.launch.reason if self.launch else ""

    def _sentence_without_front_door(self) -> str:
        if not self.controlled:
            return f"Nobody answers at {self.url}. This console does not run the engine: start it with `ingot serve`."
        if self.problem:
            return "What stands in its way, and what mends it:"
        if self.control.running:
            return f"The front door does not answer yet ({self.control.who})."
        if self.control.ended:
            return f"Its process ended: {self.control.ended}."
        return "Start it with the button above." if self.active else "Activate a profile to give it a model."

    @property
    def cause(self) -> str:
        """Why it failed, in a sentence: the diagnosis, else the first error that preflight found, else the reason."""
        return cause_of(self.launch) if self.launch else ""

    @property
    def problem(self) -> Finding | None:
        """What is wrong with what runs the engine, in a card with its fix."""
        return self.unknown or self.control.problem

    @property
    def last_words(self) -> list[OutputLine]:
        """The end of what an engine wrote that starts, or has failed, without a word from its front door."""
        return self.output[-LAST_WORDS:] if self.state in (State.STARTING, State.FAILED) else []

    @property
    def troubles(self) -> list[EngineEvent]:
        """What happened lately to what runs the engine, where some of it was no good."""
        return self.happened if any(event.failed for event in self.happened) and not self.ready else []

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
        """The one thing to offer now: start, stop, restart or roll-back; empty where this console cannot do any."""
        if not self.controlled or (self.unknown and not self.reachable):
            return ""
        if self.control.problem and not self.reachable:
            return BUTTONS.get(self.control.problem.id, "start")
        if self.state in (State.IDLE, State.STOPPED):
            return "start"
        if self.state in (State.PREFLIGHT, State.STARTING, State.DRAINING):
            return "stop"
        if self.state in FAILED and not self.reachable:
            return "start"  # its process is gone, killed perhaps: that says nothing against the revision
        if self.state in FAILED and self.roll_back_to:
            return "roll-back"
        return "restart"


def where_it_ended(launch: LaunchRecord) -> str:
    """`Failed after 6.2 s, in “graphs”.`; the reason too where no card says more."""
    told = sentence(launch, runs=False)
    explained = launch.diagnosis or launch.findings or not launch.reason
    return told if explained else f"{told} {launch.reason}"


def cause_of(launch: LaunchRecord) -> str:
    if launch.diagnosis:
        return launch.diagnosis.summary
    errors = (finding.message for finding in launch.findings if finding.severity is Severity.ERROR)
    return next(errors, launch.reason)


NUM_PHASES = 6
"""Phases before `ready`; one more or fewer only moves the arc a little."""
