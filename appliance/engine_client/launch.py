"""A launch of the native engine: what it and its core say to each other, from the configuration to the last token."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

import msgspec

from appliance.core_protocol import (
    AboutCore,
    CoreBeat,
    CorePhase,
    EngineConfig,
    Fatal,
    FinishReason,
    Hello,
    Loaded,
    SamplingParams,
    Shutdown,
)
from appliance.engine_client.channel import CoreGoneError
from appliance.engine_client.client import CoreClient
from appliance.engine_client.core import NativeCore
from appliance.engine_process.conclude import End
from appliance.engine_process.engine_launch import FATAL_GRACE_S, EngineLaunch
from appliance.engine_process.errors import EngineGoneError
from appliance.engine_process.launch_journal import LaunchJournal
from appliance.engine_process.probe import PROBE_LIMIT_S, ProbeError
from appliance.home import Home
from appliance.protocol import Phase, Progress, State
from appliance.selftest.answers import MODEL, Answer
from appliance.selftest.launch_check import SelfTestError, Subject, check_launch, sample_weights

if TYPE_CHECKING:
    from appliance.plan.launch import LaunchPlan, NativePlan

SHUTDOWN_GRACE_S = 0.5
# Runs before everything that waits.
PROBE_PRIORITY = -(1 << 30)
# A step that runs must end before the probe's can begin, and a larger one may follow.
STEPS_BEFORE_PROBE = 3

# What the front door itself must load before it can serve (tokenizer, chat template); done while the core starts.
Prepare = Callable[["NativePlan"], Coroutine[None, None, None]]


class NativeLaunch(EngineLaunch):
    main_name = "core"

    def __init__(self, home: Home, launch: LaunchJournal, core: NativeCore, prepare: Prepare) -> None:
        super().__init__(home, launch)
        self.client = CoreClient(core.channel)
        self._core = core
        self._prepare = prepare
        self._loaded: asyncio.Future[Loaded] = self._loop.create_future()
        self._hello = asyncio.Event()
        # Even before there is a plan for it, everything the core says is kept.
        self._attach(core.child)
        self._do(self.client.receive(self))

    async def start(self, plan: LaunchPlan) -> None:
        from appliance.plan.launch import NativePlan  # late, as all of preflight

        assert isinstance(plan, NativePlan)
        self._end_phase(Phase.PREFLIGHT)
        self.launch.change(State.STARTING)
        self._phase(Phase.CORE_START)
        self._do(_read_ahead(plan))
        await self._hello.wait()
        await self._core.channel.listening()
        # The core was started before its GPU was known, and has not touched any yet.
        config = msgspec.structs.replace(plan.engine_config(), environment=plan.environment)
        self._watch.runs_on(config.device)
        self._core.channel.send(config)
        loaded, _ = await asyncio.gather(self._loaded, self._prepare(plan))
        await self._self_test(plan, config, loaded)
        self._ready()

    @property
    def requests(self) -> int:
        return self.client.in_flight

    async def idle(self) -> None:
        await self.client.idle()

    async def probe(self) -> None:
        sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        generation = self.client.start([0], sampling, priority=PROBE_PRIORITY, probe=True)
        try:
            while (output := await generation.read()).finish_reason is None:
                continue
        except EngineGoneError:
            return  # which ends the launch by itself
        finally:
            self.client.release(generation)
        if output.finish_reason is FinishReason.ERROR:
            raise ProbeError(f"The liveness probe failed: {output.error}")

    def probe_limit_s(self) -> float:
        return PROBE_LIMIT_S + STEPS_BEFORE_PROBE * self._watch.longest_step_s

    def ask_to_end(self) -> float:
        try:
            self._core.channel.send(Shutdown())
        except CoreGoneError:
            return 0.0
        return SHUTDOWN_GRACE_S

    def fail_requests(self, reason: str) -> None:
        self.client.fail(reason)

    def close(self) -> None:
        self._core.channel.close()

    async def _self_test(self, plan: NativePlan, config: EngineConfig, loaded: Loaded) -> None:
        def moved(done: int, total: int) -> None:
            self._phase(Phase.SELF_TEST, Progress(done=done, total=total, unit="prompts"))

        moved(0, 0)
        subject = await asyncio.to_thread(_subject, plan, config, loaded)
        await check_launch(self._generate, subject, self._home.selftest, moved)
        self._end_phase(Phase.SELF_TEST)

    async def _generate(self, prompt_token_ids: list[int], sampling: SamplingParams) -> Answer:
        generation = self.client.start(prompt_token_ids, sampling, probe=True)
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
                    raise SelfTestError(f"self-test: the prompt failed: {output.error}")
                if output.finish_reason is not None:
                    return Answer(
                        prompt_token_ids=prompt_token_ids,
                        token_ids=token_ids,
                        logprobs=logprobs,
                        alternatives=alternatives,
                    )
        finally:
            self.client.release(generation)

    def generated(self) -> None:
        self._watch.heard(time.monotonic())
        self._tokens_came()

    def told(self, message: AboutCore) -> None:
        self._watch.heard(time.monotonic())
        match message:
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
                if not self._loaded.done():  # a stop has cancelled it
                    self._loaded.set_result(message)
            case Fatal():
                self.fatal = message
                if message.stacks:
                    with contextlib.suppress(OSError):  # a full disk: the cause is told nevertheless
                        self.launch.folder.write_stacks(message.stacks)
                self._loop.call_later(FATAL_GRACE_S, self.finish, End(state=State.FAILED))


async def _read_ahead(plan: NativePlan) -> None:
    from appliance.checkpoint.read_ahead import read_ahead_of_launch  # late, as all of preflight

    await read_ahead_of_launch(lambda: plan.index.files)


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
