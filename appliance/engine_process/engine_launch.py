"""A launch of either engine, from a running process to its end: its output, its deadlines, and why it ends.

Whatever ends it (an exception that it logged, its exit, silence, a passed deadline, an unanswered probe, a wish to
stop) arrives at one place as an `End`; the first one counts, and `conclude.py` carries it out.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from appliance.checkpoint.errors import CheckpointError
from appliance.core_protocol import Fatal
from appliance.diagnosis.fatal_watch import FatalWatch
from appliance.diagnosis.first_error import FirstError
from appliance.engine_process.child import Child
from appliance.engine_process.conclude import End, Seen, conclude, end_processes
from appliance.engine_process.deadlines import FLOORS_S, Watch
from appliance.engine_process.errors import EngineGoneError, NotListeningError
from appliance.engine_process.kernel_log import KernelLog, KernelRecord, of_this_end, out_of_memory
from appliance.engine_process.launch_journal import LaunchJournal
from appliance.engine_process.log_capture import LogCapture
from appliance.engine_process.probe import ProbeError, ProbeTimer
from appliance.engine_process.process_ledger import ProcessLedger
from appliance.engines import engine_named
from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.protocol import Load, Phase, ProcessEnd, Progress, State
from appliance.selftest.launch_check import SelfTestError

if TYPE_CHECKING:
    from appliance.engine_process.offered_fix import Check
    from appliance.hardware import Gpu
    from appliance.plan.launch import LaunchPlan

LOG_INTERVAL_S = 0.1
WATCH_INTERVAL_S = 0.5
# How long an engine may take to exit after it reported its last exception.
FATAL_GRACE_S = 0.3
# One that stopped listening has not reported anything yet: its exit status says most, if it comes.
GONE_GRACE_S = 2.0
# One that only logged it may log more: its other processes fail with the same error.
LOGGED_GRACE_S = 1.0
# A process that left the group may still hold the log's pipe; do not wait for it longer than this.
DRAIN_S = 0.3
# How long a process may be stopped (SIGSTOP, a debugger) before the engine counts as hung.
STOPPED_S = 5.0
# How native code ends that crashed.
CRASHES = (signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT)
# How often stops are looked for.
STOPPED_INTERVAL_S = 1.0

# What may go wrong on our side of a launch without being a bug in this program.
EXPECTED = (SelfTestError, CheckpointError, NotListeningError, EngineGoneError)


class EngineLaunch(ABC):
    """`start` brings the engine up to `ready`; what else differs between the engines is in the methods below it."""

    floors_s: Mapping[str, float] = FLOORS_S
    """See `deadlines`."""

    main_name: str = "engine"
    """What its main process is called where its log does not say."""

    def __init__(self, home: Home, launch: LaunchJournal) -> None:
        self.launch = launch
        self.load = Load()
        self.fatal: Fatal | None = None
        self.child: Child | None = None
        self.check: Check = lambda _document: ()  # preflight's, once it has let this launch pass
        self.model: Path | None = None  # its folder, likewise
        self.gpus: tuple[Gpu, ...] = ()  # as they were before the launch; none on a CPU
        self._home = home
        self._capture: LogCapture | None = None
        self._ledger: ProcessLedger | None = None
        self._kernel_log = KernelLog()
        self._fatal_watch = FatalWatch()
        self._first_error = FirstError()
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[End] = self._loop.create_future()
        record = launch.record
        self._watch = Watch(Catalogue(home).last_good(record.profile), time.monotonic(), self.floors_s)
        self._watch.phase(Phase.PREFLIGHT, time.monotonic())
        self._probe_timer = ProbeTimer(time.monotonic())
        self._tasks: set[asyncio.Task[None]] = set()
        self._bring_up: asyncio.Task[None] | None = None
        self._do(self._watch_time())

    # ----------------------------------------------------------------------------------------------------------------
    # What an engine does in its own way
    # ----------------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def start(self, plan: LaunchPlan) -> None:
        """Up to `ready`."""

    @property
    @abstractmethod
    def requests(self) -> int:
        """How many requests of clients are in flight."""

    @abstractmethod
    async def idle(self) -> None:
        """Returns when no request is in flight."""

    @abstractmethod
    async def probe(self) -> None:
        """Generate one real token, as soon as the engine can. Raises ProbeError when it answers with an error."""

    @abstractmethod
    def probe_limit_s(self) -> float:
        """How long that may take."""

    def ask_to_end(self) -> float:
        """Ask the engine to stop by its own protocol, if it has one; returns how many seconds to wait for it."""
        return 0.0

    @abstractmethod
    def fail_requests(self, reason: str) -> None:
        """The engine is gone: waiting requests fail with the reason."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held besides the process."""

    def read_log(self, first: int, lines: list[str]) -> None:  # noqa: B027  the native core sends messages
        """Everything the engine prints, in the reading thread."""

    def read_progress(self, bar: str) -> None:  # noqa: B027  likewise
        """A progress bar as it moves, likewise."""

    # ----------------------------------------------------------------------------------------------------------------
    # What both have
    # ----------------------------------------------------------------------------------------------------------------

    def begin(self, bring_up: Coroutine[None, None, None]) -> None:
        """Run what leads to `start`; it is called off when the launch ends before that."""
        self._bring_up = self._do(bring_up)

    def finish(self, end: End) -> None:
        if not self._end.done():
            self._end.set_result(end)

    async def ended(self) -> None:
        """Returns when the launch has ended and nothing of it runs any more."""
        end = await self._end
        if self._bring_up is not None:
            self._bring_up.cancel()
        if end.reason:
            self.fail_requests(end.reason)  # first, so that clients get this reason and not the engine's shutdown error
        last_line = self._lines_read()
        if self._ledger is not None and self.child is not None and not self.child.exited:
            self._ledger.expect_ends()
        status = await end_processes(end, self.child, self.ask_to_end, self.launch.folder)
        killed_by_kernel: str | None = None
        if self._capture is not None:
            await asyncio.to_thread(self._capture.drained, DRAIN_S)
        if self._ledger is not None:
            await asyncio.to_thread(self._ledger.close)
            self._note_main_end(self._ledger, status, last_line)
        said = await asyncio.to_thread(self._kernel_log.since_start)  # which closes it, too
        if self._capture is not None:
            if end.state is not State.STOPPED:
                said = self._of_this_end(said, status)
                self._capture.add([str(word) for word in said])
                killed_by_kernel = out_of_memory(said)
                self._explain_kills(killed_by_kernel)
            self.launch.log(*self._capture.take())
        reason = end.reason
        try:
            seen = Seen(
                fatal=self.fatal,
                exit_status=status,
                killed_by_kernel=killed_by_kernel,
                last_line=last_line,
                model=self.model,
            )
            reason = await conclude(end, self.launch, seen, self.check)
        finally:  # even a bug in the diagnosis must not leave callers waiting
            self.fail_requests(reason or "the engine was stopped")
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.close()
        await asyncio.to_thread(self._see_memory_free)

    def _of_this_end(self, said: list[KernelRecord], status: int | None) -> list[KernelRecord]:
        """What the kernel says of this engine's end, by how its processes ended."""
        ends = [known.status for known in self.launch.record.process_ends if not known.aftermath]
        several = engine_named(self.launch.record.engine).several_processes
        unknown = several and (not ends or None in ends)
        statuses = {status, *ends}
        crashed = any(-number in statuses for number in CRASHES)
        return of_this_end(said, killed=unknown or -signal.SIGKILL in statuses, crashed=unknown or crashed)

    def _explain_kills(self, killed_by_kernel: str | None) -> None:
        """What the kernel's record, or that there is none, means for the processes that were killed."""
        if killed_by_kernel is None and not self._kernel_log.counts_kills:
            return
        for known in list(self.launch.record.process_ends):
            if known.status == -signal.SIGKILL and not known.aftermath:
                self.launch.process_ended(
                    msgspec.structs.replace(
                        known, out_of_memory=killed_by_kernel is not None, kernel=killed_by_kernel or ""
                    )
                )

    def _note_main_end(self, ledger: ProcessLedger, status: int | None, last_line: int) -> None:
        """A main process that ended by itself, as its parent knows it: it may have ended before it could be watched, or
        its status was gone before the ledger could read it."""
        if self.child is None or status is None:
            return
        end = ledger.main_end
        if end is None:
            end = ProcessEnd(pid=self.child.pid, name=self.main_name, time=time.time(), line=last_line)
        if end.status is None:
            self.launch.process_ended(msgspec.structs.replace(end, status=status))

    def _lines_read(self) -> int:
        return self._capture.count if self._capture is not None else 0

    def _process_ended(self, end: ProcessEnd) -> None:
        self._loop.call_soon_threadsafe(self.launch.process_ended, end)

    def kill(self) -> None:
        """At once, without an event loop."""
        if self.child is not None:
            self.child.kill()

    def _see_memory_free(self) -> None:
        """After the cause is reported, and before anything else starts."""
        if not self.gpus or self._capture is None:
            return
        from appliance.engine_process.device_memory import wait_until_free  # late, as all of the hardware

        for gpu in self.gpus:
            self._capture.add(wait_until_free(gpu))

    def _attach(self, child: Child) -> None:
        """From here on everything the process says is kept, and its end is noted."""
        self.child = child
        self._ledger = ProcessLedger(child.pid, self._process_ended, self.main_name)
        self._capture = LogCapture(child.output, self.launch.folder.log, self._read_log, self.read_progress)
        for work in (self._await_exit(child), self._pass_on_log(self._capture), self._watch_for_stops(child)):
            self._do(work)

    def _do(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """An exception in it ends the launch."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _phase(self, phase: Phase, progress: Progress | None = None) -> None:
        self.launch.move_phase(phase, progress or Progress())
        self._watch.phase(phase, time.monotonic())

    def _end_phase(self, phase: Phase, outcome: str = "done") -> None:
        self.launch.end_phase(phase, outcome)
        self._watch.phase(phase, time.monotonic(), ended=True)

    def _ready(self) -> None:
        self.launch.begin_phase(Phase.READY)
        self.launch.end_phase(Phase.READY)
        self.launch.change(State.READY)
        self._probe_timer.token(time.monotonic())
        self._do(self._keep_probing())

    def _tokens_came(self) -> None:
        """Real traffic: no probe is needed for a while."""
        self._probe_timer.token(time.monotonic())

    def _read_log(self, first: int, lines: list[str]) -> None:
        if self._ledger is not None:
            self._ledger.heard(first, lines)
        self.read_log(first, lines)
        for number, line in enumerate(lines, start=first):
            if (
                self.launch.record.state is State.STARTING
                and (error := self._first_error.feed(number, line)) is not None
            ):
                self._loop.call_soon_threadsafe(self.launch.error_logged, error)
            if (found := self._fatal_watch.feed(number, line)) is not None:
                self._loop.call_soon_threadsafe(self._logged_its_end, found.headline)

    def _logged_its_end(self, headline: str) -> None:
        """It may or may not exit by itself. What a serving engine logs may contain a client's words, so it is probed at
        once, and only if no token comes has it ended."""
        if self.launch.record.state is State.STARTING:
            end = End(state=State.FAILED, reason=headline)
            self._loop.call_later(LOGGED_GRACE_S, self.finish, end)
            return
        self._fatal_watch = FatalWatch()
        self._probe_timer.hurry()

    async def _await_exit(self, child: Child) -> None:
        await child.wait()
        self.finish(End(state=State.FAILED))

    async def _pass_on_log(self, capture: LogCapture) -> None:
        while True:
            self.launch.log(*capture.take())
            await asyncio.sleep(LOG_INTERVAL_S)

    async def _watch_time(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            now = time.monotonic()
            if now - last > 4 * WATCH_INTERVAL_S:
                self._watch.excuse(now)
                self._probe_timer.excuse(now)
            last = now
            why = self._watch.overdue(now) or self._unanswered(now)
            if why is not None:
                self.finish(End(state=State.HUNG, reason=why))

    async def _watch_for_stops(self, child: Child) -> None:
        """A stopped process never resumes by itself; whoever debugs it knows what they are doing."""
        since: float | None = None
        while True:
            await asyncio.sleep(STOPPED_INTERVAL_S)
            stopped = await asyncio.to_thread(self._look_at, child)
            now = time.monotonic()
            since = (since or now) if stopped is not None else None
            if since is not None and now - since >= STOPPED_S:
                reason = f"{stopped} has been stopped (SIGSTOP) for {now - since:,.0f} s"
                self.finish(End(state=State.HUNG, reason=reason))
                return

    def _look_at(self, child: Child) -> str | None:
        self._kernel_log.look()
        return child.stopped()

    async def _keep_probing(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if self.launch.record.state is not State.READY or not self._probe_timer.begin(time.monotonic()):
                continue
            try:
                await self.probe()
            except ProbeError as error:
                self.finish(End(state=State.FAILED, error=error))
                return
            self._probe_timer.answered(time.monotonic())

    def _unanswered(self, now: float) -> str | None:
        waited = self._probe_timer.waiting(now)
        if waited is None or waited <= self.probe_limit_s():
            return None
        return f"no token for {waited:,.0f} s after a liveness probe; health checks still pass"

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, NotListeningError):
            # Not listening is not the cause: it is about to exit, and its log or its status will say why.
            self._loop.call_later(GONE_GRACE_S, self.finish, End(state=State.FAILED, otherwise=str(error)))
            return
        if not isinstance(error, EXPECTED):
            traceback.print_exception(error, file=sys.stderr)
        self.finish(End(state=State.FAILED, error=error))
