"""The core's main loop: messages in, steps of the engine, messages out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from appliance.core_protocol import (
    Abort,
    CorePhase,
    EngineConfig,
    FromCore,
    Outputs,
    Shutdown,
    Submit,
    ToCore,
    TokenOutput,
)
from appliance.engine.allocator import contiguous_segments
from appliance.engine.device_context import open_ahead
from appliance.engine.engine import Engine
from appliance.engine.heap import give_back, keep_objects
from appliance.engine.heartbeat import Activity, Counters
from appliance.engine.link import CoreLink
from appliance.engine.ranks import Followers, NoFollowers, RankProcesses, Turn, join, seeded
from appliance.engine.threads import share_cores
from appliance.models.collectives import ALONE, Group
from kernels.seal import seal

IDLE_WAIT_S = 1.0
# Set to anything, it has the scheduler's invariants checked after each step, for developers: with half a million blocks
# that takes 0.4 s, and what it finds ends the core.
CHECK_BOOKS = "INGOT_CHECK_BOOKS"


class Core:
    """An engine and what its process does with it in turn; all ranks that share a model take the same turns."""

    def __init__(
        self, config: EngineConfig, report: Callable[[CorePhase], None], log: Callable[[str], None], group: Group
    ) -> None:
        started = time.monotonic()
        open_ahead(torch.device(config.device))
        self.engine = Engine(config, report, log, group)
        keep_objects()
        give_back()
        seconds = time.monotonic() - started
        log(f"{config.model_folder} loaded on {config.device} in {config.dtype} after {seconds:.2f} s")
        self._check_books = CHECK_BOOKS in os.environ
        self._capturing = True  # there may be graphs that are not captured yet

    @property
    def has_work(self) -> bool:
        return self._capturing or not self.engine.idle

    def hear(self, message: ToCore) -> FromCore | None:
        """What the front door is to be told at once, if anything is."""
        match message:
            case Submit():
                refused = self.engine.submit(message)
                return Outputs([refused]) if refused else None
            case Abort(request_id=request_id):
                self.engine.abort(request_id)
            case EngineConfig():
                raise ValueError("a core can be configured only once")
        return None

    def advance(self, compiled: Sequence[str]) -> list[TokenOutput]:
        """One step, or one graph where there is nothing to do. `compiled` is as in `Engine.step`."""
        if self.engine.idle:
            self._capturing = self._capturing and self.engine.capture_next()
            return []
        outputs = self.engine.step(compiled)
        if self._check_books:
            self.engine.scheduler.check_books()
        return outputs


def run(link: CoreLink, activity: Activity, totals: list[Counters]) -> None:
    """Wait for the configuration, load, and generate until stopped. `totals[0]` is kept current."""
    share_cores()
    activity.enter("waiting for its configuration")
    config = _configuration(link)
    if config is None:
        return
    followers: Followers = NoFollowers()
    if config.ranks > 1:
        followers = RankProcesses(config, link.folder, link)
    try:
        _serve(config, followers, link, activity, totals)
    except Exception:
        followers.settle()
        followers.kill()
        raise
    followers.close()


def _serve(
    config: EngineConfig, followers: Followers, link: CoreLink, activity: Activity, totals: list[Counters]
) -> None:
    activity.enter("getting its kernels ready")
    prepare(config, _log)
    group: Group = ALONE
    if config.ranks > 1:
        activity.enter("joining the other ranks")
        config, group = join(config, 0, link.folder, _log, followers.progress)

    def report(phase: CorePhase) -> None:
        activity.enter(phase.phase)
        link.send(phase)

    core = Core(config, report, _log, group)
    group.progress.end_turn()
    engine = core.engine
    link.send(engine.loaded)
    activity.enter("idle")
    _log("start: " + ", ".join(f"{where} {seconds:.2f} s" for where, seconds in activity.taken.items()))
    while True:
        activity.enter("idle" if engine.idle else "step")
        messages = _messages(link, 0 if core.has_work else IDLE_WAIT_S)
        for message in messages:
            if isinstance(message, Shutdown):
                return
            if answer := core.hear(message):
                link.send(answer)
        if messages or core.has_work:
            compiled = engine.compiled()
            followers.lead(Turn(messages, compiled))
            if not engine.idle:
                activity.enter("step")
            group.progress.begin_turn()
            outputs = core.advance(compiled)
            group.progress.end_turn()
            if outputs:
                link.send(Outputs(outputs))
        totals[0] = _counters(engine)


def prepare(config: EngineConfig, log: Callable[[str], None]) -> None:
    """What must be so before the device is touched, and before a kernel is imported."""
    os.environ.update(config.environment)
    if config.ranks > 1 and config.device != "cpu":
        contiguous_segments()
    if config.cast is not None:
        manifest = seal(Path(config.cast), source_checked=True)
        log(f"sealed to the {len(manifest.variants)} kernels of {config.cast} for {manifest.architecture}")


def _messages(link: CoreLink, wait_s: float) -> list[ToCore]:
    """All that have arrived, after waiting for the first; none behind one that ends the core."""
    found: list[ToCore] = []
    while message := link.receive(0 if found else wait_s):
        found.append(seeded(message))
        if isinstance(message, Shutdown):
            break
    return found


def _configuration(link: CoreLink) -> EngineConfig | None:
    """Wait for the configuration; None if the launch was cancelled."""
    while True:
        message = link.receive(IDLE_WAIT_S)
        if isinstance(message, EngineConfig):
            return message
        if isinstance(message, Shutdown):
            return None


def _counters(engine: Engine) -> Counters:
    scheduler = engine.scheduler
    seen, drafts = scheduler.prompt_tokens_seen, scheduler.drafts
    return Counters(
        running=scheduler.num_running,
        waiting=engine.num_waiting,
        prompt_tokens=engine.prompt_tokens_computed,
        output_tokens=engine.output_tokens_sampled,
        cache_usage=scheduler.cache.usage,
        prefix_cache_hit_rate=scheduler.prompt_tokens_cached / seen if seen else 0.0,
        preemptions=scheduler.num_preemptions,
        cache_queries=seen,
        cache_hits=scheduler.prompt_tokens_cached,
        draft_tokens=drafts.num_drafted if drafts else 0,
        accepted_tokens=drafts.num_accepted if drafts else 0,
        steps=dict(engine.steps),
    )


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
