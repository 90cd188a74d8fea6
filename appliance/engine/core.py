"""The core's main loop: messages in, steps of the engine, messages out."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from appliance.engine.engine import Engine
from appliance.engine.heap import give_back
from appliance.engine.heartbeat import Activity, Counters
from appliance.engine.link import CoreLink
from appliance.protocol import Abort, CorePhase, EngineConfig, FromCore, Outputs, Shutdown, Submit, ToCore
from kernels.seal import seal

IDLE_WAIT_S = 1.0
# Set to anything, it has the scheduler's invariants checked after each step, for developers: with half a million blocks
# that takes 0.4 s, and what it finds ends the core.
CHECK_BOOKS = "INGOT_CHECK_BOOKS"


def run(link: CoreLink, activity: Activity, totals: list[Counters]) -> None:
    """Wait for the configuration, load, and generate until stopped. `totals[0]` is kept current."""
    # Leave one CPU to the front door: a compute thread that waits for it would delay all the others.
    torch.set_num_threads(max(len(os.sched_getaffinity(0)) - 1, 1))
    activity.enter("waiting for its configuration")
    config = _configuration(link)
    if config is None:
        return

    os.environ.update(config.environment)
    if config.cast is not None:
        manifest = seal(Path(config.cast))
        _log(f"sealed to the {len(manifest.variants)} kernels of {config.cast} for {manifest.architecture}")

    def report(phase: CorePhase) -> None:
        activity.enter(phase.phase)
        link.send(phase)

    started = time.monotonic()
    engine = Engine(config, report, _log)
    give_back()
    _log(f"{config.model_folder} loaded on {config.device} in {config.dtype} after {time.monotonic() - started:.2f} s")
    link.send(engine.loaded)
    check_books = CHECK_BOOKS in os.environ
    capturing = True  # there may be graphs that are not captured yet
    while True:
        activity.enter("idle" if engine.idle else "step")
        message = link.receive(0 if capturing or not engine.idle else IDLE_WAIT_S)
        while message is not None:
            if isinstance(message, Shutdown):
                return
            _handle(message, engine, link)
            message = link.receive(0)
        if engine.idle:
            totals[0] = _counters(engine)
            capturing = capturing and engine.capture_next()
            continue
        outputs = engine.step()
        if check_books:
            engine.scheduler.check_books()
        totals[0] = _counters(engine)
        if outputs:
            link.send(Outputs(outputs))


def _configuration(link: CoreLink) -> EngineConfig | None:
    """Wait for the configuration; None if the launch was cancelled."""
    while True:
        message = link.receive(IDLE_WAIT_S)
        if isinstance(message, EngineConfig):
            return message
        if isinstance(message, Shutdown):
            return None


def _handle(message: ToCore, engine: Engine, link: CoreLink) -> None:
    answer: FromCore | None = None
    match message:
        case Submit():
            refused = engine.submit(message)
            answer = Outputs([refused]) if refused else None
        case Abort(request_id=request_id):
            engine.abort(request_id)
        case EngineConfig():
            raise ValueError("a core can be configured only once")
    if answer is not None:
        link.send(answer)


def _counters(engine: Engine) -> Counters:
    scheduler = engine.scheduler
    seen = scheduler.prompt_tokens_seen
    return Counters(
        running=scheduler.num_running,
        waiting=engine.num_waiting,
        prompt_tokens=engine.prompt_tokens_computed,
        output_tokens=engine.output_tokens_sampled,
        cache_usage=scheduler.pool.usage,
        prefix_cache_hit_rate=scheduler.prompt_tokens_cached / seen if seen else 0.0,
        preemptions=scheduler.num_preemptions,
        cache_queries=seen,
        cache_hits=scheduler.prompt_tokens_cached,
        steps=dict(engine.steps),
    )


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
