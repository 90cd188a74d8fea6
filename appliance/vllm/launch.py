"""A launch of vLLM: started as a process family of its own, read from its log, asked over its socket."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from appliance.engine_process.child import Child
from appliance.engine_process.conclude import End
from appliance.engine_process.deadlines import STEP_LIMITS_S
from appliance.engine_process.engine_launch import FATAL_GRACE_S, EngineLaunch
from appliance.engine_process.errors import NotListeningError
from appliance.engine_process.launch_journal import LaunchJournal
from appliance.engine_process.probe import ProbeError
from appliance.engine_process.socket_folder import make_socket_folder
from appliance.home import Home
from appliance.protocol import Load, Phase, Progress, State
from appliance.selftest.launch_check import SelfTestError
from appliance.vllm.client import VllmClient
from appliance.vllm.deadlines import FLOORS_S
from appliance.vllm.figures import Figures, computed_between, load_between, own_families, read_figures
from appliance.vllm.http import UpstreamGoneError, fetch
from appliance.vllm.log_phases import PhaseReader, Step
from appliance.vllm.no_jit import watch
from appliance.vllm.own_questions import OwnQuestions
from appliance.vllm.selftest import Asker

if TYPE_CHECKING:
    from appliance.plan.launch import LaunchPlan
    from appliance.vllm.command_line import Place
    from appliance.vllm.plan import VllmPlan

GUARD = (sys.executable, "-m", "appliance.engine_process.guard", "--")
# vLLM ends its workers and frees the GPU within this, where it is well.
SHUTDOWN_GRACE_S = 5.0
POLL_S = 0.1
POLL_TIMEOUT_S = 5.0
LOAD_INTERVAL_S = 1.0
# A server that answers nothing for so long is stuck: its own requests take milliseconds.
SILENCE_S = 60.0
SELF_TEST_TOKENS = 4
# How often compilers are looked for, in a launch that forbids them.
COMPILERS_INTERVAL_S = 0.25

OnFigures = Callable[[Figures, Figures], None]


# Of weights, at most, while vLLM starts: it imports for tens of seconds, in which a fast disk reads as much.
READ_AHEAD_BYTES = 32 << 30


class ServedByVllm(msgspec.Struct, frozen=True, kw_only=True):
    """What vLLM itself says that it serves."""

    name: str
    device: str
    created: int
    max_model_len: int | None


class VllmLaunch(EngineLaunch):
    """`on_figures` is called once a second with vLLM's previous and current counters."""

    floors_s = FLOORS_S

    def __init__(self, home: Home, launch: LaunchJournal, on_figures: OnFigures) -> None:
        super().__init__(home, launch)
        self._folder = make_socket_folder("ingot-vllm-")  # whoever may open the socket may use vLLM without a key
        self.client = VllmClient(self._folder / "vllm.sock")
        self.served: ServedByVllm | None = None
        self._on_figures = on_figures
        self._figures = Figures()
        self._own = OwnQuestions()
        self._reader: PhaseReader | None = None
        self._device = "cpu"
        self._asker: Asker | None = None

    async def start(self, plan: LaunchPlan) -> None:
        from appliance.vllm.plan import VllmPlan  # late, as all of preflight

        assert isinstance(plan, VllmPlan)
        self._end_phase(Phase.PREFLIGHT)
        self.launch.change(State.STARTING)
        self._device = plan.device.kind
        self._phase(Phase.ENGINE_START)
        self._do(_read_ahead(plan))
        try:
            place, said = await asyncio.to_thread(self._place, plan)
            self._run(plan, place, said)
        except OSError as error:
            reason = f"Cannot start vLLM: {error.filename or 'its process'}: {error.strerror}"
            self.finish(End(state=State.FAILED, reason=reason, error=error))
            return
        await self._answers()
        assert self.child is not None
        if plan.profile.forbids_jit:
            unheard = await asyncio.to_thread(watch.unheard, self._folder, self.child.pid)
            if unheard is not None:
                self.finish(End(state=State.FAILED, error=unheard))
                return
        self._begin_self_test()
        try:
            await self._self_test(plan.profile.served_model_name)
            self.served = await self._ask_what_is_served(plan)
        except UpstreamGoneError as error:
            raise NotListeningError(f"self-test: vLLM: {error}") from error  # why it ended, its log says
        except TimeoutError as error:
            await asyncio.sleep(FATAL_GRACE_S)  # its last exception says more than this
            raise SelfTestError("self-test: vLLM: no answer in time") from error
        self._do(self._watch_load())
        self._ready()

    @property
    def requests(self) -> int:
        return self.client.in_flight

    async def idle(self) -> None:
        await self.client.idle()

    async def probe(self) -> None:
        assert self._asker is not None, "the self-test has made it"
        try:
            with self._own.asking():
                await self._asker.ask(1, timeout_s=2 * self.probe_limit_s())
        except UpstreamGoneError as error:
            raise NotListeningError(f"vLLM: {error}") from error  # why it ended, its log says
        except TimeoutError as error:
            await asyncio.sleep(FATAL_GRACE_S)  # as above
            raise ProbeError("vLLM: no answer in time") from error
        except SelfTestError as error:
            raise ProbeError(str(error)) from error

    def probe_limit_s(self) -> float:
        """A step that runs must end first."""
        return STEP_LIMITS_S[self._device]

    def ask_to_end(self) -> float:
        if self.child is not None:
            self.child.send(signal.SIGTERM)
        return SHUTDOWN_GRACE_S

    def fail_requests(self, reason: str) -> None:
        self.client.fail(reason)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def read_log(self, first: int, lines: list[str]) -> None:
        for line in lines:
            self.read_progress(line)

    def read_progress(self, bar: str) -> None:
        if self._reader is not None and (step := self._reader.feed(bar)) is not None:
            self._loop.call_soon_threadsafe(self._take, step)

    # ----------------------------------------------------------------------------------------------------------------
    # Starting
    # ----------------------------------------------------------------------------------------------------------------

    def _place(self, plan: VllmPlan) -> tuple[Place, list[str]]:
        """Where vLLM listens and compiles, and what the log says of that. A damaged pack costs time, not the start."""
        from appliance.vllm.cache_packs import record
        from appliance.vllm.cache_packs.pack import PackError
        from appliance.vllm.cache_packs.store import folders, packs
        from appliance.vllm.cache_packs.working_copy import clear_orphans, working_copy
        from appliance.vllm.command_line import Place

        place, said = Place.below(self._home, self.client.socket), []
        clear_orphans(place.caches.parent, packs(folders(self._home)), plan.pack)
        if plan.pack is not None:
            try:
                caches = working_copy(plan.pack, place.caches.parent)
            except PackError as error:
                said.append(f"ingot: the cache pack {plan.pack.pack.name} is not used: {error}")
            else:
                said.append(f"ingot: using the cache pack {plan.pack.pack.name}")
                place = msgspec.structs.replace(place, caches=caches)
        place.caches.mkdir(mode=0o700, parents=True, exist_ok=True)
        if plan.facts is not None:
            record.write(self.launch.folder, place.caches, plan.facts)
        watch.install(plan.profile, self._folder)
        return place, said

    def _run(self, plan: VllmPlan, place: Place, said: list[str]) -> None:
        from appliance.vllm.command_line import render  # late: a front door of the native engine never needs it

        eager = plan.profile.enforce_eager
        self._reader = PhaseReader(compiles=not eager, captures=not eager and self._device != "cpu")
        command = render(plan, place)
        child = Child([*GUARD, *command.arguments], command.whole_environment(os.environ))
        self._attach(child)
        assert self._capture is not None
        self._capture.add([*said, f"ingot: starting {command.shown(os.environ)}"])
        if plan.profile.forbids_jit:
            self._do(self._watch_for_compilers(child))

    async def _watch_for_compilers(self, child: Child) -> None:
        while True:
            error = await asyncio.to_thread(watch.compiled, self._folder, child.pid)
            if error is not None:
                self.finish(End(state=State.FAILED, error=error))
                return
            await asyncio.sleep(COMPILERS_INTERVAL_S)

    def _take(self, step: Step) -> None:
        if self.launch.record.state is not State.STARTING:
            return
        begun = {record.phase for record in self.launch.record.phases}
        for phase in step.ended:
            if phase in begun:
                self._end_phase(phase)
        if step.phase is None:
            self._begin_self_test()
        else:
            self._phase(step.phase, step.progress if step.progress.total else None)

    def _begin_self_test(self) -> None:
        """From here on vLLM only opens its server and answers: all that came before is over."""
        for record in self.launch.record.phases:
            if record.outcome is None and record.phase != Phase.SELF_TEST:
                self._end_phase(Phase(record.phase))
        if all(record.phase != Phase.SELF_TEST for record in self.launch.record.phases):
            self._phase(Phase.SELF_TEST, Progress(done=0, total=1, unit="prompts"))

    async def _answers(self) -> None:
        """Returns once `/health` says that engine and server are up. What keeps them from it ends the launch: an exit,
        an exception in the log, or a phase's deadline."""
        while True:
            try:
                status, _ = await fetch(self.client.socket, "/health", timeout_s=POLL_TIMEOUT_S)
            except (UpstreamGoneError, TimeoutError):
                status = 0
            if status == 200:
                return
            await asyncio.sleep(POLL_S)

    async def _self_test(self, name: str) -> None:
        self._asker = Asker(self.client.socket, name)
        await self._asker.ask(SELF_TEST_TOKENS, timeout_s=self.probe_limit_s())
        before = read_figures(await self.metrics())
        await self._asker.ask(1, timeout_s=self.probe_limit_s())  # as every probe will
        self._figures = read_figures(await self.metrics())
        self._own.learn(before, self._figures)
        self._phase(Phase.SELF_TEST, Progress(done=1, total=1, unit="prompts"))
        self._end_phase(Phase.SELF_TEST)

    async def _ask_what_is_served(self, plan: VllmPlan) -> ServedByVllm:
        _, raw = await fetch(self.client.socket, "/v1/models", timeout_s=POLL_TIMEOUT_S)
        try:
            length = msgspec.json.decode(raw)["data"][0]["max_model_len"]
        except (msgspec.DecodeError, KeyError, IndexError, TypeError):
            length = None
        return ServedByVllm(
            name=plan.profile.served_model_name,
            device=plan.device.gpu.name if plan.device.gpu else "cpu",
            created=int(time.time()),
            max_model_len=length if isinstance(length, int) else None,
        )

    # ----------------------------------------------------------------------------------------------------------------
    # Serving
    # ----------------------------------------------------------------------------------------------------------------

    async def metrics(self) -> bytes:
        """vLLM's own, in Prometheus' text format; empty where it does not answer."""
        try:
            status, raw = await fetch(self.client.socket, "/metrics", timeout_s=POLL_TIMEOUT_S)
        except (UpstreamGoneError, TimeoutError):
            return b""
        return own_families(raw) if status == 200 else b""

    async def _watch_load(self) -> None:
        read_at = answered_at = time.monotonic()
        while True:
            await asyncio.sleep(LOAD_INTERVAL_S)
            raw = await self.metrics()
            now = time.monotonic()
            if not raw:
                if now - answered_at > SILENCE_S:
                    reason = f"no answer from vLLM's server for {now - answered_at:,.0f} s"
                    self.finish(End(state=State.HUNG, reason=reason))
                self.load = Load()
                continue
            before, self._figures = self._figures, self._own.left_out(read_figures(raw))
            self._on_figures(before, self._figures)
            # Not from what the front door passes on: vLLM's server answers much without its core.
            if computed_between(before, self._figures):
                self._tokens_came()
            self.load = load_between(before, self._figures, now - read_at)
            read_at = answered_at = now
            self.launch.beat(self.load)


async def _read_ahead(plan: VllmPlan) -> None:
    from appliance.checkpoint.read_ahead import read_ahead_of_launch  # late, as all of preflight
    from appliance.vllm.weight_files import weight_files

    await read_ahead_of_launch(lambda: weight_files(plan), READ_AHEAD_BYTES)
