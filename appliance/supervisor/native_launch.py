"""A launch of the native engine, from a running process to its end: configure, load, self-test, serve, watch, end.

Whatever ends it (the core's exception, its exit, silence, a passed deadline, a wish to stop) arrives at one place as an
`End`; the first one counts, and `ending.py` carries it out.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

import msgspec

from appliance.checkpoint.errors import CheckpointError
from appliance.home import Home
from appliance.protocol import (
    CoreBeat,
    CorePhase,
    EngineConfig,
    Fatal,
    FinishReason,
    FromCore,
    Hello,
    Load,
    Loaded,
    Outputs,
    Phase,
    Progress,
    SamplingParams,
    State,
)
from appliance.selftest.answers import MODEL, Answer
from appliance.selftest.launch_check import SelfTestError, Subject, check_launch, sample_weights
from appliance.supervisor.core_channel import CoreGoneError
from appliance.supervisor.core_client import CoreClient, EngineGoneError
from appliance.supervisor.deadlines import Watch
from appliance.supervisor.ending import End, conclude, end_processes
from appliance.supervisor.launch import Launch
from appliance.supervisor.launch_folder import last_good
from appliance.supervisor.log_capture import LogCapture
from appliance.supervisor.native_core import NativeCore

if TYPE_CHECKING:
    from appliance.preflight import NativePlan

LOG_INTERVAL_S = 0.1
WATCH_INTERVAL_S = 0.5
# A core that told its last exception is on its way out; this is how long it may take.
FATAL_GRACE_S = 0.3
# A process that left the group may still hold the log's pipe; nobody waits for it longer than this.
DRAIN_S = 0.3

# What may go wrong on our side of a launch without being a fault of this program.
EXPECTED = (SelfTestError, CheckpointError, CoreGoneError, EngineGoneError)

# What the front door itself must load before it can serve (tokenizer, chat template); done while the core starts.
Prepare = Callable[["NativePlan"], Coroutine[None, None, None]]


class NativeLaunch:
    def __init__(self, home: Home, launch: Launch, core: NativeCore) -> None:
        self.launch = launch
        self.core = core
        self.client = CoreClient(core.channel)
        self.capture = LogCapture(core.child.output, launch.folder.log)
        self.load = Load()
        self.fatal: Fatal | None = None
        self._home = home
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[End] = loop.create_future()
        self._loaded: asyncio.Future[Loaded] = loop.create_future()
        self._hello = asyncio.Event()
        self._watch = Watch(last_good(home, launch.record.profile), time.monotonic())
        self._watch.phase(Phase.PREFLIGHT, time.monotonic())
        self._tasks: set[asyncio.Task[None]] = set()
        self._bring_up: asyncio.Task[None] | None = None
        # From here on everything the process says is kept, even before there is a plan for it.
        for work in (self._receive(), self._await_exit(), self._pass_on_log(), self._watch_time()):
            self._do(work)

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
        status = await end_processes(end, self.core, self.launch.folder)
        await asyncio.to_thread(self.capture.drained, DRAIN_S)
        self.launch.log(*self.capture.take())
        reason = await conclude(end, self.launch, self.fatal, status)
        self.client.fail(reason or "it was stopped")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.core.channel.close()

    async def start(self, plan: NativePlan, prepare: Prepare) -> None:
        """Up to `ready`."""
        self._end_phase(Phase.PREFLIGHT)
        self.launch.change(State.STARTING)
        self._phase(Phase.CORE_START)
        await self._hello.wait()
        # The core was started before its GPU was known, and has not touched any yet.
        config = msgspec.structs.replace(plan.engine_config(), environment=plan.environment)
        self._watch.runs_on(config.device)
        self.core.channel.send(config)
        loaded, _ = await asyncio.gather(self._loaded, prepare(plan))
        await self._self_test(plan, config, loaded)
        self.launch.begin_phase(Phase.READY)
        self.launch.end_phase(Phase.READY)
        self.launch.change(State.READY)

    def _do(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """An exception in it ends the launch."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def _self_test(self, plan: NativePlan, config: EngineConfig, loaded: Loaded) -> None:
        def moved(done: int, total: int) -> None:
            self._phase(Phase.SELF_TEST, Progress(done=done, total=total, unit="prompts"))

        moved(0, 0)
        subject = await asyncio.to_thread(_subject, plan, config, loaded)
        await check_launch(self._generate, subject, self._home.selftest, moved)
        self._end_phase(Phase.SELF_TEST)

    async def _generate(self, prompt_token_ids: list[int], sampling: SamplingParams) -> Answer:
        generation = self.client.start(prompt_token_ids, sampling)
        token_ids: list[int] = []
        logprobs: list[float] = []
        alternatives: list[dict[int, float]] = []
        try:
            while True:
                output = await generation.read()
                token_ids += output.token_ids
                logprobs += [entry.logprob for entry in output.logprobs]
                alternatives += [dict(entry.top) for entry in output.logprobs]
                if output.finish_reason is FinishReason.ERROR:
                    raise SelfTestError(f"self-test: the engine could not run the prompt: {output.error}")
                if output.finish_reason is not None:
                    return Answer(
                        prompt_token_ids=prompt_token_ids,
                        token_ids=token_ids,
                        logprobs=logprobs,
                        alternatives=alternatives,
                    )
        finally:
            self.client.release(generation)

    async def _receive(self) -> None:
        while True:
            message = await self.core.channel.receive()
            self._watch.heard(time.monotonic())
            self._take(message)

    def _take(self, message: FromCore) -> None:
        match message:
            case Outputs():
                self.client.deliver(message)
            case CoreBeat():
                self._watch.heard(time.monotonic(), message.where, message.busy_s)
                self.load = message.load
                self.launch.beat(message.load)
            case Hello():
                self._hello.set()
            case CorePhase():
                if message.phase is not Phase.CORE_START:
                    self._end_phase(Phase.CORE_START)
                self._phase(message.phase, message.progress)
                if message.outcome is not None:
                    self._end_phase(message.phase, message.outcome)
            case Loaded():
                for record in self.launch.record.phases:
                    self._end_phase(Phase(record.phase))
                self._loaded.set_result(message)
            case Fatal():
                self.fatal = message
                asyncio.get_running_loop().call_later(FATAL_GRACE_S, self.finish, End(state=State.FAILED))

    async def _await_exit(self) -> None:
        await self.core.child.wait()
        self.finish(End(state=State.FAILED))

    async def _pass_on_log(self) -> None:
        while True:
            self.launch.log(*self.capture.take())
            await asyncio.sleep(LOG_INTERVAL_S)

    async def _watch_time(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            now = time.monotonic()
            if now - last > 4 * WATCH_INTERVAL_S:
                self._watch.excuse(now)
            last = now
            why = self._watch.overdue(now)
            if why is None and self._watch.silent(now) and self.core.child.stopped:
                why = "the core's process is stopped (SIGSTOP)"
            if why is not None:
                self.finish(End(state=State.HUNG, reason=why))

    def _phase(self, phase: Phase, progress: Progress | None = None) -> None:
        self.launch.move_phase(phase, progress or Progress())
        self._watch.phase(phase, time.monotonic())

    def _end_phase(self, phase: Phase, outcome: str = "done") -> None:
        self.launch.end_phase(phase, outcome)
        self._watch.phase(phase, time.monotonic(), ended=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, CoreGoneError):
            # That it does not listen is no cause: it is about to exit, and its log or its status will say why.
            asyncio.get_running_loop().call_later(FATAL_GRACE_S, self.finish, End(state=State.FAILED, error=error))
            return
        if not isinstance(error, EXPECTED):
            traceback.print_exception(error, file=sys.stderr)
        self.finish(End(state=State.FAILED, error=error))


def _subject(plan: NativePlan, config: EngineConfig, loaded: Loaded) -> Subject:
    """Blocking."""
    from appliance.checkpoint.digest import checkpoint_digest  # late, as all of preflight

    return Subject(
        digest=checkpoint_digest(plan.folder),
        sample=sample_weights(plan.index.files),
        dtype=config.dtype,
        device=plan.device.gpu.name if plan.device.gpu else "cpu",
        vocab_size=loaded.vocab_size,
        max_model_len=config.max_model_len,
        bundled=plan.folder == MODEL,
    )
