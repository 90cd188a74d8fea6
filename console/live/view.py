"""The engine as the console last saw it: what the front door says, or else what runs the engine."""

from __future__ import annotations

import msgspec

from appliance.engines import engine_named
from appliance.launches.phases import phases_before_ready
from appliance.launches.states import ENDED
from appliance.protocol import ApplianceState, Finding, LaunchRecord, Load, Severity, State
from console.db.models import Launch
from console.engine_control.actions import ACTIONS, AFTER_PROBLEM, GONE, OFFERED, WITH_PROBLEM, Action
from console.engine_control.base import EngineEvent, EngineStatus, OutputLine
from console.engine_control.operations import Drain, Undone
from console.formats import seconds
from console.launches.outcome import Standing, sentence, standing

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
"""States that need attention."""

HEADLINES: dict[State, str] = {
    State.IDLE: "Nothing is running",
    State.PREFLIGHT: "Checking {what}",
    State.STARTING: "Starting {what}",
    State.READY: "{what} is ready",
    State.DRAINING: "Draining {what}",
    State.STOPPED: "{what} is stopped",
    State.FAILED: "{what} failed",
    State.HUNG: "{what} hung",
}

LAST_WORDS = 20


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's status in one immutable value; every page is rendered from it.

    `reachable`: the front door answers. `drain` says what follows once the engine has finished its requests, `undone`
    what then failed. `active` names the active revision ("qwen3-8b", "r7"); `roll_back_to` the last revision that was
    ready, if it is another one. `last_good` is an earlier launch of the same profile to compare with. `output` is the
    output of the engine's process while its front door does not answer; `recent_events` are that process's last events.
    `stopped_because` says who stopped it on purpose, if somebody did: "Stopped by admin". `unknown` says why its
    status cannot be determined. `controlled`: this console can start and stop the engine;
    `acting`: it is doing so now.
    """

    state: State = State.IDLE
    since: float | None = None
    reachable: bool = False
    control: EngineStatus = EngineStatus(running=False)
    drain: Drain | None = None
    undone: Undone | None = None
    unknown: Finding | None = None
    appliance: ApplianceState | None = None
    active: tuple[str, str] | None = None
    roll_back_to: tuple[str, str] | None = None
    recent: list[Launch] = []
    last_good: LaunchRecord | None = None
    output: list[OutputLine] = []
    recent_events: list[EngineEvent] = []
    url: str = ""
    stopped_because: str = ""
    controlled: bool = True
    acting: bool = False

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
    def revision(self) -> tuple[str, str] | None:
        """Profile and revision that the engine runs; of none, the active one, which it will run next."""
        if self.launch is not None and self.launch.state not in ENDED:
            return self.launch.profile, self.launch.revision
        return self.active

    @property
    def after_drain(self) -> str:
        """What is done once the requests have finished: `stopping`, `restarting` or `starting chat r2`."""
        if self.drain is None and self.appliance is not None and self.appliance.replaced_by is not None:
            return f"starting {self.appliance.replaced_by}, which a request asked for"
        if self.drain is None or self.drain.then == "stop":
            return "stopping"
        if self.active is None or self.active == self.revision:
            return "restarting"
        return f"starting {' '.join(self.active)}"

    @property
    def load(self) -> Load:
        return self.appliance.load if self.appliance else Load()

    @property
    def requests(self) -> int:
        """Requests in flight, which ending the engine would end."""
        return self.appliance.requests if self.appliance else 0

    @property
    def models(self) -> list[str]:
        return self.appliance.models if self.appliance else []

    @property
    def runs(self) -> bool:
        """Whether there is an engine at all, whatever its state."""
        return self.reachable or self.control.running

    def standing(self, state: str) -> Standing:
        """Of a launch by what it wrote last: without an end it goes on only while there is an engine."""
        return standing(state, runs=self.runs)

    @property
    def unsealed(self) -> bool:
        """Whether the engine compiles kernels on demand."""
        return self.appliance is not None and self.appliance.sealed is False

    @property
    def ready(self) -> bool:
        return self.state is State.READY

    @property
    def headline(self) -> str:
        """The state as a heading."""
        what = " ".join(self.active) if self.active else "The engine"
        if self.unknown and not self.reachable:
            return "The engine’s status is unknown"
        if self.problem and not self.reachable:
            return f"{what} is not running"
        if self.launch is not None:
            what = f"{self.launch.profile} {self.launch.revision}".rstrip()
        replaced = self.appliance is not None and self.appliance.replaced_by is not None
        then = f", then {self.after_drain}" if self.drain or replaced else ""
        return HEADLINES[self.state].format(what=what) + then

    @property
    def sentence(self) -> str:
        """Details of the state, and what to do."""
        if not self.reachable:
            return self._sentence_without_front_door()
        if self.launch is not None and self.state in FAILED:
            return where_it_ended(self.launch)
        if self.ready and self.launch is not None and self.launch.ready_after_s is not None:
            return f"First token after {seconds(self.launch.ready_after_s)}."
        if self.state in (State.IDLE, State.STOPPED):
            return self._why_stopped
        return self.launch.reason if self.launch else ""

    def _sentence_without_front_door(self) -> str:
        if not self.controlled:
            return f"No engine answers at {self.url}. This console does not run one: start it with `ingot serve`."
        if self.problem:
            return "The problem, and how to fix it:"
        if self.control.running:
            return "Starting…"
        if self.control.ended and not self.stopped_because and self.state is not State.STOPPED:
            return f"The engine ended: {self.control.ended}."
        return self._why_stopped

    @property
    def _why_stopped(self) -> str:
        """Who stopped it, if known, and how to go on."""
        why = self.launch.reason if self.launch else f"{self.stopped_because}." if self.stopped_because else ""
        how = "Press Start to run it again." if self.active else "Activate a profile to choose a model."
        return f"{why} {how}".lstrip()

    @property
    def cause(self) -> str:
        """Why it failed: the diagnosis, else the first preflight error, else the reason."""
        return cause_of(self.launch) if self.launch else ""

    @property
    def problem(self) -> Finding | None:
        """A problem with the engine's process or container, shown as a card with its fix."""
        return self.unknown or self.control.problem or (self.undone.finding if self.undone else None)

    @property
    def unrecorded_output(self) -> list[OutputLine]:
        """The output of an engine that is starting or has failed while its front door does not answer."""
        return self.output if self.state in (State.STARTING, State.FAILED) else []

    @property
    def last_words(self) -> list[OutputLine]:
        return self.unrecorded_output[-LAST_WORDS:]

    @property
    def notable_events(self) -> list[EngineEvent]:
        """The recent events, if any of them was a failure and the engine is not ready."""
        return self.recent_events if any(event.failed for event in self.recent_events) and not self.ready else []

    @property
    def share(self) -> float:
        """The share of the launch that is done, for the progress arc."""
        if self.launch is None or not self.launch.phases:
            return 0.0
        last = self.launch.phases[-1]
        part = last.progress.done / last.progress.total if last.progress.total else 0.0
        phases = phases_before_ready(engine_named(self.launch.engine))
        ended = sum(phase.outcome is not None for phase in self.launch.phases)
        return min(1.0, (ended + (0.0 if last.outcome else part)) / len(phases))

    @property
    def actions(self) -> list[Action]:
        """What can be done with the engine now, the main action first. Empty if this console does not run it, and while
        it is starting or stopping it."""
        if not self.controlled or self.acting or (self.unknown and not self.reachable):
            return []
        return [self._named(ACTIONS[name]) for name in self._offered() if self._possible(name)]

    def asked(self, action: Action) -> str:
        """The question before the action: `Restart chat r1`, or `Roll back to chat r1`, which names its target."""
        what = " ".join(self.revision or ())
        return action.label if action.id == "roll-back" else f"{action.label} {what}".rstrip()

    def _offered(self) -> tuple[str, ...]:
        if self.control.problem and not self.reachable:
            return WITH_PROBLEM.get(self.control.problem.id, AFTER_PROBLEM)
        return GONE if self.state in FAILED and not self.reachable else OFFERED[self.state]

    def _possible(self, name: str) -> bool:
        return (name != "roll-back" or self.roll_back_to is not None) and (
            name != "finish-now" or self.drain is not None
        )

    def _named(self, action: Action) -> Action:
        target = " ".join(self.roll_back_to or ())
        then = ACTIONS[self.drain.then].label if self.drain else ""
        return action._replace(label=action.label.format(target=target, then=then))


def where_it_ended(launch: LaunchRecord) -> str:
    """`Failed after 6.2 s, in “graphs”.`; the reason as well, if no card says more."""
    told = sentence(launch, runs=False)
    explained = launch.diagnosis or launch.findings or not launch.reason
    return told if explained else f"{told} {launch.reason}"


def cause_of(launch: LaunchRecord) -> str:
    if launch.diagnosis:
        return launch.diagnosis.summary
    errors = (finding.message for finding in launch.findings if finding.severity is Severity.ERROR)
    return next(errors, launch.reason)
