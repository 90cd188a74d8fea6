"""The one owner of the engine: runs a launch, answers what state it is in, judges attempts, and stops.

A front door runs one launch and stays up after a failure to report it; another `ingot serve` on the same state folder
begins the next. Only if the profile says `on-failure: restart` is an engine that had served restarted here, unless
that has become a loop; and a request may have another profile run in its place (`swap`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from appliance import __version__
from appliance.engine_client.client import CoreClient
from appliance.engine_client.core import CORE_COMMAND, NativeCore
from appliance.engine_client.launch import NativeLaunch, Prepare
from appliance.engine_process.conclude import End
from appliance.engine_process.engine_launch import EngineLaunch
from appliance.engine_process.launch_journal import NO_ORIGIN, LaunchJournal, Origin
from appliance.engines import VLLM, engine_named
from appliance.home import Home
from appliance.launches.event_stream import EventStream
from appliance.launches.states import ENDED
from appliance.protocol import ApplianceState, LaunchRecord, Load, Phase, State
from appliance.supervisor.core_ahead import CoreAhead
from appliance.supervisor.next_launch import Start, Swap, failed_record, find_loop, read_next
from appliance.supervisor.preflight import run_preflight, tell_findings
from appliance.supervisor.words import counted, why_stopped
from appliance.vllm.launch import OnFigures, VllmLaunch

if TYPE_CHECKING:
    from appliance.plan.launch import LaunchPlan
    from appliance.preflight import Report
    from appliance.supervisor.source import Source

DRAIN_GRACE_S = 5.0
# Long enough for clients to see the failure, short for those who wait.
RESTART_AFTER_S = 2.0
# Requests that waited are served first: a core that starts takes a processor for a second or two.
CORE_AHEAD_AFTER_S = 1.0


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
        self._core_ahead = CoreAhead(core_command, core)
        self._keeping_ahead: asyncio.Task[None] | None = None
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
        self._start: Start | None = None  # of the last launch
        self._running = False
        self._swap: Swap | None = None  # until the launch begins that it is for
        self._wanted = asyncio.Event()  # whoever waits for a swap is woken

    # ----------------------------------------------------------------------------------------------------------------
    # State
    # ----------------------------------------------------------------------------------------------------------------

    @property
    def record(self) -> LaunchRecord | None:
        return self._launch.record if self._launch else self._unrecorded

    @property
    def state(self) -> State:
        """A front door that has no launch yet, or is between two, is about to have one: it reads which."""
        record = self.record
        if record is None or (self._swap is not None and record.state in ENDED and not self._stopping.is_set()):
            return State.PREFLIGHT
        return record.state

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
        return self._engine.client if isinstance(self._engine, NativeLaunch) and self._takes_requests else None

    @property
    def vllm(self) -> VllmLaunch | None:
        """The same of vLLM."""
        return self._engine if isinstance(self._engine, VllmLaunch) and self._takes_requests else None

    @property
    def _takes_requests(self) -> bool:
        """Also while it drains for a swap: whoever asked for that lets in no new ones, and those on their way count."""
        swapping = self._swap is not None and not self._stopping.is_set()
        return self.state is State.READY or (self.state is State.DRAINING and swapping)

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
            replaced_by=self._swap.profile if self._swap is not None and not self._stopping.is_set() else None,
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
        """One launch, from preflight to its end; and the next, where it is restarted or another takes its place.
        Returns when none follows."""
        self._running = True
        try:
            await self._run()
        except Exception as error:
            self._stopping.set()  # nothing is started by what may fail again
            # A bug in this program: clients must not see an endless start.
            fault = f"Internal error in Ingot: {type(error).__name__}: {error}"
            if self._launch is None:
                self._fail_unrecorded(fault, self._home.new_launch_id())
            elif not self._launch.ended:
                self._launch.change(State.FAILED, fault)
            raise
        finally:
            self._running = False
            self._call_off_swap()
            self.kill()  # a fault may have left it; and one started ahead may never have come to be used

    async def _run(self) -> None:
        start: Start | None
        if self._swap is not None:
            start = self._swap.start
        else:
            start = Start(await asyncio.to_thread(read_next, self._home, self._profile_file), self._started)
        while start is not None:
            before, self._start = self._start, start
            launch = await self._run_one(start)
            start = await self._following(launch, start, before)

    async def _restarted(self, start: Start, ended: str) -> Start:
        """The same profile, or what has been made the active one meanwhile; but not in place of what was asked for."""
        origin = start.origin._replace(restart_of=ended)
        if origin.requested_by is not None:
            return start.again(self._home, origin)
        source = await asyncio.to_thread(read_next, self._home, self._profile_file)
        return Start(msgspec.structs.replace(source, asked=False), time.time(), Origin(restart_of=ended))

    async def _following(self, launch: LaunchJournal | None, start: Start, before: Start | None) -> Start | None:
        """What runs after `launch`, which has ended: what a request has asked for; or, if it was that and never became
        ready, what was served `before` it; or the same again."""
        if self._stopping.is_set():
            return None
        if self._swap is not None:
            return self._swap.start
        requested = start.origin.requested_by is not None
        if requested and (launch is None or launch.record.ready_after_s is None):
            if before is None or not start.replaces:
                return None
            return before.again(self._home, Origin(returned_after=start.source.launch))
        if launch is None or not self._may_restart(launch) or not await self._still_wanted(RESTART_AFTER_S):
            return None
        return await self._restarted(start, launch.record.id)

    async def _run_one(self, start: Start) -> LaunchJournal | None:
        """None of a launch that never had a folder."""
        self.plan = self._drain_until = None
        source = start.source
        try:
            launch = self._begin(
                source.launch, source.revision, source.document, started=start.started, origin=start.origin
            )
        except OSError as error:
            folder = self._home.launch(source.launch)
            reason = f"Cannot write to the launch's folder {folder}: {error.strerror}."
            print(f"ingot: {reason}", file=sys.stderr)
            self._fail_unrecorded(reason, source.launch, source)
            self._call_off_swap()
            return None
        launch.change(State.PREFLIGHT)
        if self._swap is not None and self._swap.start is start:
            self._swap.launch.set_result(launch)
            self._swap = None
        launch.begin_phase(Phase.PREFLIGHT)
        loop = None if source.asked else await asyncio.to_thread(find_loop, self._home, launch.record)
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
            engine.finish(End(state=State.STOPPED, reason=why_stopped(self._why, "", 0)))
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

    # A swap

    @property
    def may_swap(self) -> bool:
        """Whether the engine serves, or ended without anybody having wanted it to; and no other swap is under way."""
        ended = not self._running and self.state in ENDED
        return self._swap is None and not self._stopping.is_set() and (self.state is State.READY or ended)

    @property
    def is_starting(self) -> bool:
        """Whether an engine is about to serve, or to fail."""
        return self._running and self.state not in (State.READY, State.DRAINING)

    @property
    def is_stopping(self) -> bool:
        """Whether somebody wants the engine to end, or to stay ended."""
        return self._stopping.is_set()

    async def stop_wanted(self) -> str:
        """Returns once somebody does, with what was given as the reason."""
        await self._stopping.wait()
        return self._why

    @property
    def document(self) -> dict[str, Any]:
        """The profile of the last launch; empty before the first."""
        return self._start.source.document if self._start is not None else {}

    async def swap(
        self, source: Source, *, requested_by: str, within_s: float, quiet: Callable[[], Awaitable[None]], why: str
    ) -> LaunchJournal | None:
        """Run `source` in place of what runs, whose requests have `within_s` seconds to finish. `quiet` returns when
        none is on its way any more. The launch of `source` once it has begun; None if it cannot begin, or if somebody
        wanted the engine stopped meanwhile. If it fails, what ran before is started again. Only while `may_swap`."""
        assert self.may_swap
        replaces = self.state is State.READY
        start = Start(source, time.time(), Origin(requested_by=requested_by), replaces=replaces)
        swap = self._swap = Swap(start, why)
        if not engine_named(source.document.get("engine")).own_server:
            self._core_ahead.start()
        if replaces and self._engine is not None:
            self._engine.launch.change(State.DRAINING)
            self._drain_until = min(time.time() + within_s, self._stop_by)
            self._draining = asyncio.create_task(self._end_when_idle(self._engine, within_s, quiet))
        self._wanted.set()
        return await asyncio.shield(swap.launch)

    async def wanted(self) -> bool:
        """Wait until there is something to `run` again; False if the engine is to stay ended."""
        while not self._stopping.is_set():
            if self._swap is not None:
                return True
            self._wanted.clear()
            await self._wanted.wait()
        return False

    def keep_core_ahead(self) -> None:
        """From the next idle moment on, have a core's process ready for the launch that follows."""
        if self._engine is not None:
            self._keeping_ahead = asyncio.create_task(self._start_core_when_idle(self._engine))

    async def _start_core_when_idle(self, engine: EngineLaunch) -> None:
        await asyncio.sleep(CORE_AHEAD_AFTER_S)
        await engine.idle()
        if engine is self._engine and self.state is State.READY:
            self._core_ahead.start()

    def _call_off_swap(self) -> None:
        if self._swap is not None and not self._swap.launch.done():
            self._swap.launch.set_result(None)
        self._swap = None

    def _set_stopping(self) -> None:
        self._stopping.set()
        self._wanted.set()

    # An end

    async def stop(self, grace_s: float = DRAIN_GRACE_S) -> None:
        """Let running requests finish for `grace_s` seconds, refuse new ones, then end the launch. The earlier deadline
        of a drain under way still counts."""
        self._set_stopping()
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
        self._why = why or self._why
        self._set_stopping()
        engine = self._engine
        if engine is None or engine.launch.ended:
            return
        requests = self.describe().requests
        if self.state is State.READY:
            engine.launch.change(State.DRAINING)  # new requests are refused from here on
        reason = why_stopped(self._why, f"{counted(requests)} ended", requests)
        engine.finish(End(state=State.STOPPED, reason=reason))

    def drain(self, within_s: float, why: str = "") -> asyncio.Task[None] | None:
        """Refuse new requests, let those in flight finish, and end the launch once they have, or after `within_s`
        seconds. Asked again, the new deadline counts, unless `stop` has set an earlier one. Nothing happens, and None
        is returned, unless the engine serves. `why` as for `stop_now`."""
        engine = self._engine
        if engine is None or self.state not in (State.READY, State.DRAINING):
            return None
        self._why = why or self._why
        self._set_stopping()
        if self.state is State.READY:
            engine.launch.change(State.DRAINING)
        if self._draining is not None:
            self._draining.cancel()
        self._drain_until = min(time.time() + within_s, self._stop_by)
        self._draining = asyncio.create_task(self._end_when_idle(engine, self._drain_until - time.time()))
        return self._draining

    async def _end_when_idle(
        self, engine: EngineLaunch, within_s: float, quiet: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                if quiet is not None:
                    await quiet()
                await engine.idle()
        requests = engine.requests
        late = f"{counted(requests)} still running at the deadline and {'was' if requests == 1 else 'were'} ended"
        why = self._why or (self._swap.why if self._swap is not None else "")
        engine.finish(End(state=State.STOPPED, reason=why_stopped(why, late, requests)))

    def kill(self) -> None:
        """At once: nothing is left of the engine when this returns."""
        if self._engine is not None:
            self._engine.kill()
        self._core_ahead.drop()

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
        self,
        launch_id: str,
        revision: str,
        document: dict[str, Any],
        *,
        record: bool = True,
        origin: Origin = NO_ORIGIN,
    ) -> Report | LaunchRecord:
        """Would this profile start? The report if it would, or if a refusal is not to be recorded; otherwise the record
        of a launch that never left preflight. A running engine is not touched. FileExistsError: there is a launch of
        this id already."""
        report = await asyncio.to_thread(run_preflight, self._home, document, running=self.running)
        if report.plan is not None or not record:
            return report
        serving = self._launch is not None and not self._launch.ended  # it may have ended meanwhile
        launch = self._begin(launch_id, revision, document, attempt=serving, origin=origin)
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
        origin: Origin = NO_ORIGIN,
    ) -> LaunchJournal:
        launch = LaunchJournal(
            self._home,
            self.stream,
            launch_id=launch_id,
            document=document,
            revision=revision,
            started=started,
            attempt=attempt,
            origin=origin,
        )
        if not attempt:
            self._launch = launch
        return launch

    def _fail_unrecorded(self, reason: str, launch_id: str, source: Source | None = None) -> None:
        """For when nothing of it is on disk: the state is then answered from the record in memory."""
        self._unrecorded = failed_record(reason, launch_id, self._started, source)

    def _make_engine(self, source: Source, launch: LaunchJournal) -> EngineLaunch:
        """Raises OSError when no process can be had."""
        if engine_named(source.document.get("engine")) is VLLM:
            self._core_ahead.drop()  # started before it was known whose launch this is
            return VllmLaunch(self._home, launch, self._on_figures)
        return NativeLaunch(self._home, launch, self._core_ahead.take(), self._prepare)

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
