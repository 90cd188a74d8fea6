"""The one owner of the engine: runs a launch, answers what state it is in, judges attempts, and stops.

A front door runs one launch and stays up after a failure to report it; another `ingot serve` on the same state folder
begins the next. Only if the profile says `on-failure: restart` is an engine that had served restarted here, unless
that has become a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from appliance import __version__
from appliance.engine_client.client import CoreClient
from appliance.engine_client.core import CORE_COMMAND, NativeCore
from appliance.engine_client.launch import NativeLaunch, Prepare
from appliance.engine_process.conclude import End
from appliance.engine_process.engine_launch import EngineLaunch
from appliance.engine_process.launch_journal import LaunchJournal
from appliance.engines import VLLM, engine_named
from appliance.home import Home
from appliance.launches.event_stream import EventStream
from appliance.protocol import ApplianceState, Diagnosis, Finding, LaunchRecord, Load, Phase, Severity, State
from appliance.vllm.launch import OnFigures, VllmLaunch

if TYPE_CHECKING:
    from appliance.plan.launch import LaunchPlan
    from appliance.preflight import Report
    from appliance.supervisor.source import Source

DRAIN_GRACE_S = 5.0
# Long enough for clients to see the failure, short for those who wait.
RESTART_AFTER_S = 2.0


class Supervisor:
    """`prepare` loads what the front door needs to serve a model. `core` is a process that was started ahead.
    `on_figures` receives vLLM's counters."""

    def __init__(
        self,
        home: Home,
        *,
        prepare: Prepare,
        profile_file: Path | None = None,
        core: NativeCore | None = None,
        core_command: Sequence[str] = CORE_COMMAND,
        started: float | None = None,
        on_figures: OnFigures | None = None,
    ) -> None:
        self.stream = EventStream(home)
        self.plan: LaunchPlan | None = None
        self._home = home
        self._prepare = prepare
        self._profile_file = profile_file
        self._core = core
        self._core_command = core_command
        self._on_figures = on_figures or (lambda _before, _now: None)
        self._started = time.time() if started is None else started
        self._launch: LaunchJournal | None = None
        self._engine: EngineLaunch | None = None
        self._attempt: LaunchRecord | None = None
        self._stopping = asyncio.Event()  # somebody asked for the engine's end: it is not restarted
        self._why = ""  # what whoever asked wants its clients and the history to be told
        self._draining: asyncio.Task[None] | None = None
        self._drain_until: float | None = None
        self._stop_by = math.inf  # the latest end of any drain, once the process has been asked to end
        self._unrecorded: LaunchRecord | None = None  # of a launch that failed before it had a folder

    # ----------------------------------------------------------------------------------------------------------------
    # State
    # ----------------------------------------------------------------------------------------------------------------

    @property
    def record(self) -> LaunchRecord | None:
        return self._launch.record if self._launch else self._unrecorded

    @property
    def state(self) -> State:
        """A front door that has no launch yet is about to have one: it reads which."""
        return self.record.state if self.record else State.PREFLIGHT

    @property
    def reason(self) -> str:
        """The reason for the state, in a sentence; may be empty."""
        record = self.record
        if record is None:
            return ""
        return record.diagnosis.summary if record.diagnosis else record.reason

    @property
    def client(self) -> CoreClient | None:
        """None until the engine is ready to take requests, and after it has ended."""
        return self._engine.client if isinstance(self._engine, NativeLaunch) and self.state is State.READY else None

    @property
    def vllm(self) -> VllmLaunch | None:
        """The same of vLLM."""
        return self._engine if isinstance(self._engine, VllmLaunch) and self.state is State.READY else None

    @property
    def load(self) -> Load:
        return self._engine.load if self._engine and self.state in (State.READY, State.DRAINING) else Load()

    @property
    def drain_until(self) -> float | None:
        """The deadline of the drain under way, if there is one."""
        return self._drain_until if self.state is State.DRAINING else None

    def describe(self) -> ApplianceState:
        launch = self._launch
        served = self.plan is not None and self.state in (State.STARTING, State.READY, State.DRAINING)
        return ApplianceState(
            state=self.state,
            since=self.record.since if self.record else self._started,
            version=__version__,
            sealed=self.plan.sealed if self.plan and served else None,
            launch=self.record,
            attempt=self._attempt,
            load=self.load,
            requests=self._engine.requests if self._engine and self.state in (State.READY, State.DRAINING) else 0,
            drain_until=self.drain_until,
            models=[self.plan.profile.served_model_name] if self.plan and served else [],
            max_model_len=self._max_model_len() if served else None,
            last_event=launch.last_event if launch else None,
        )

    def _max_model_len(self) -> int | None:
        """vLLM says by itself what it has come to, also of models that Ingot does not read."""
        told = (
            self._engine.served.max_model_len if isinstance(self._engine, VllmLaunch) and self._engine.served else None
        )
        return told or (self.plan.max_model_len if self.plan else None)

    # ----------------------------------------------------------------------------------------------------------------
    # Operations
    # ----------------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """One launch, from preflight to its end; and the next, where it is restarted. Returns when it has ended."""
        try:
            await self._run()
        except Exception as error:
            # A bug in this program: clients must not see an endless start.
            fault = f"Internal error in Ingot: {type(error).__name__}: {error}"
            if self._launch is None:
                self._fail_unrecorded(fault, self._home.new_launch_id())
            elif not self._launch.ended:
                self._launch.change(State.FAILED, fault)
            raise
        finally:
            self.kill()  # a fault may have left it; and one started ahead may never have come to be used

    async def _run(self) -> None:
        source = await asyncio.to_thread(_read_source, self._home, self._profile_file)
        launch = await self._run_one(source, self._started, None)
        while launch is not None and self._may_restart(launch) and await self._still_wanted(RESTART_AFTER_S):
            source = await asyncio.to_thread(_read_source, self._home, self._profile_file)
            again = msgspec.structs.replace(source, asked=False)
            launch = await self._run_one(again, time.time(), launch.record.id)

    async def _run_one(self, source: Source, started: float, restart_of: str | None) -> LaunchJournal | None:
        """None of a launch that never had a folder."""
        self.plan = None
        try:
            launch = self._begin(
                source.launch, source.revision, source.document, started=started, restart_of=restart_of
            )
        except OSError as error:
            folder = self._home.launch(source.launch)
            reason = f"Cannot write to the launch's folder {folder}: {error.strerror}."
            print(f"ingot: {reason}", file=sys.stderr)
            self._fail_unrecorded(reason, source.launch, source)
            return None
        launch.change(State.PREFLIGHT)
        launch.begin_phase(Phase.PREFLIGHT)
        loop = None if source.asked else await asyncio.to_thread(_find_loop, self._home, launch.record)
        if loop is not None:
            launch.diagnose(loop)
            launch.change(State.FAILED, loop.summary)
            return launch
        try:
            engine = self._engine = self._make_engine(source, launch)
        except OSError as error:
            launch.change(State.FAILED, f"Cannot start the engine's process: {error.strerror}.")
            return launch
        if self._stopping.is_set():  # asked for before there was anything to stop
            engine.finish(End(state=State.STOPPED, reason=_why_stopped(self._why, "", 0)))
        engine.begin(self._bring_up(source, engine))
        await engine.ended()
        return launch

    def _may_restart(self, launch: LaunchJournal) -> bool:
        """Only an engine that had served: what keeps one from starting will keep it from starting again."""
        record = launch.record
        served = record.ready_after_s is not None and record.state in (State.FAILED, State.HUNG)
        asked_for = self.plan is not None and self.plan.profile.on_failure == "restart"
        return served and asked_for and not self._stopping.is_set()

    async def _still_wanted(self, delay_s: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), delay_s)
        except TimeoutError:
            return True
        return False

    async def stop(self, grace_s: float = DRAIN_GRACE_S) -> None:
        """Let running requests finish for `grace_s` seconds, refuse new ones, then end the launch. The earlier deadline
        of a drain under way still counts."""
        self._stopping.set()
        engine = self._engine
        if engine is None or engine.launch.ended:
            return
        self._stop_by = min(time.time() + grace_s, self._drain_until or math.inf)
        draining = self.drain(grace_s)
        if draining is None:
            engine.finish(End(state=State.STOPPED))
        else:
            await asyncio.wait({draining})

    def stop_now(self, why: str = "") -> None:
        """End the launch, whatever its state, and with it the requests in flight. Their clients and the history are
        told `why`, such as "Stopped by admin", and how many there were."""
        self._stopping.set()
        self._why = why or self._why
        engine = self._engine
        if engine is None or engine.launch.ended:
            return
        requests = self.describe().requests
        if self.state is State.READY:
            engine.launch.change(State.DRAINING)  # new requests are refused from here on
        reason = _why_stopped(self._why, f"{_counted(requests)} ended", requests)
        engine.finish(End(state=State.STOPPED, reason=reason))

    def drain(self, within_s: float, why: str = "") -> asyncio.Task[None] | None:
        """Refuse new requests, let those in flight finish, and end the launch once they have, or after `within_s`
        seconds. Asked again, the new deadline counts, unless `stop` has set an earlier one. Nothing happens, and None
        is returned, unless the engine serves. `why` as for `stop_now`."""
        engine = self._engine
        if engine is None or self.state not in (State.READY, State.DRAINING):
            return None
        self._stopping.set()
        self._why = why or self._why
        if self.state is State.READY:
            engine.launch.change(State.DRAINING)
        if self._draining is not None:
            self._draining.cancel()
        self._drain_until = min(time.time() + within_s, self._stop_by)
        self._draining = asyncio.create_task(self._end_when_idle(engine, self._drain_until - time.time()))
        return self._draining

    async def _end_when_idle(self, engine: EngineLaunch, within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(engine.idle(), within_s)
        requests = engine.requests
        late = f"{_counted(requests)} still running at the deadline and {'was' if requests == 1 else 'were'} ended"
        engine.finish(End(state=State.STOPPED, reason=_why_stopped(self._why, late, requests)))

    def kill(self) -> None:
        """At once: nothing is left of the engine when this returns."""
        if self._engine is not None:
            self._engine.kill()
        if self._core is not None:
            self._core.kill()

    def end_at_once(self, why: str) -> None:
        """The same at somebody's request, which the history records."""
        self.kill()
        if self._launch is not None and not self._launch.ended:
            self._launch.change(State.STOPPED, why)

    @property
    def running(self) -> LaunchPlan | None:
        """What the launch that has not ended was planned as; None while nothing runs."""
        return self.plan if self._launch is not None and not self._launch.ended else None

    async def attempt(
        self, launch_id: str, revision: str, document: dict[str, Any], *, record: bool = True
    ) -> Report | LaunchRecord:
        """Would this profile start? The report if it would, or if a refusal is not to be recorded; otherwise the record
        of a launch that never left preflight. A running engine is not touched. FileExistsError: there is a launch of
        this id already."""
        report = await asyncio.to_thread(run_preflight, self._home, document, running=self.running)
        if report.plan is not None or not record:
            return report
        serving = self._launch is not None and not self._launch.ended  # it may have ended meanwhile
        launch = self._begin(launch_id, revision, document, attempt=serving)
        launch.change(State.PREFLIGHT)
        launch.begin_phase(Phase.PREFLIGHT)
        launch.change(State.FAILED, tell_findings(launch, report.findings))
        self._attempt = launch.record if serving else None
        return launch.record

    # ----------------------------------------------------------------------------------------------------------------
    # Internals
    # ----------------------------------------------------------------------------------------------------------------

    def _begin(
        self,
        launch_id: str,
        revision: str,
        document: dict[str, Any],
        *,
        started: float | None = None,
        attempt: bool = False,
        restart_of: str | None = None,
    ) -> LaunchJournal:
        launch = LaunchJournal(
            self._home,
            self.stream,
            launch_id=launch_id,
            document=document,
            revision=revision,
            started=started,
            attempt=attempt,
            restart_of=restart_of,
        )
        if not attempt:
            self._launch = launch
        return launch

    def _fail_unrecorded(self, reason: str, launch_id: str, source: Source | None = None) -> None:
        """For when nothing of it is on disk: the state is then answered from the record in memory."""
        now = time.time()
        self._unrecorded = LaunchRecord(
            id=launch_id,
            profile=str(source.document.get("name", "")) if source else "",
            revision=source.revision if source else "",
            started=self._started,
            state=State.FAILED,
            since=now,
            reason=reason,
            ended=now,
        )

    def _make_engine(self, source: Source, launch: LaunchJournal) -> EngineLaunch:
        """Raises OSError when no process can be had."""
        if engine_named(source.document.get("engine")) is VLLM:
            if self._core is not None:
                self._core.kill()  # started ahead, before it was known whose launch this is
                self._core = None
            return VllmLaunch(self._home, launch, self._on_figures)
        core, self._core = self._core or NativeCore(self._core_command), None
        return NativeLaunch(self._home, launch, core, self._prepare)

    async def _bring_up(self, source: Source, engine: EngineLaunch) -> None:
        findings, plan = list(source.problems), None
        if not findings:
            report = await asyncio.to_thread(run_preflight, self._home, source.document)
            findings, plan = report.findings, report.plan
        reason = tell_findings(engine.launch, findings)
        if plan is None:
            engine.finish(End(state=State.FAILED, reason=reason, explained=True))
            return
        self.plan = plan
        engine.gpus, engine.model = plan.taken, plan.folder
        engine.check = lambda document: run_preflight(self._home, document).findings
        await engine.start(plan)


def _counted(requests: int) -> str:
    return "1 request was" if requests == 1 else f"{requests:,} requests were"


def _why_stopped(why: str, cut: str, requests: int) -> str:
    """`Restarted by admin; 1 request was ended.`, without the part that does not apply."""
    told = "; ".join(filter(None, (why, cut if requests else "")))
    return f"{told}." if told else ""


def _read_source(home: Home, profile_file: Path | None) -> Source:
    from appliance.supervisor.abandoned import close_abandoned  # late, as preflight
    from appliance.supervisor.source import read_source

    try:
        close_abandoned(home)
    except OSError as error:
        print(f"ingot: cannot close an earlier launch in the history: {error}", file=sys.stderr)
    return read_source(home, profile_file)


def _find_loop(home: Home, record: LaunchRecord) -> Diagnosis | None:
    from appliance.supervisor import crash_loop  # late, as preflight

    return crash_loop.verdict(crash_loop.failures(home, record, time.time()))


def run_preflight(
    home: Home,
    document: dict[str, Any],
    listen: tuple[str, int] | None = None,
    running: LaunchPlan | None = None,
) -> Report:
    """Blocking. Without `listen` the port is not checked: it is this process that holds it. What `running` holds in
    memory counts as free: it ends before the profile starts."""
    from appliance import hardware, preflight  # late: the first answer over HTTP does not wait for them

    context = preflight.PreflightContext(
        home=home,
        document=document,
        environ=os.environ,
        inventory=hardware.inventory(),
        listen=listen,
        running=running,
        surroundings=preflight.Surroundings.here(),
    )
    return preflight.run(context)


def tell_findings(launch: LaunchJournal, findings: Sequence[Finding]) -> str:
    """Reports them all; the message of the first error, or an empty text."""
    for finding in findings:
        launch.report(finding)
    errors = [finding.message for finding in findings if finding.severity is Severity.ERROR]
    return errors[0] if errors else ""
