"""`python -m tests.gpu.bench.steps_of_load [--shape qwen3-8b] [--layers N] [--streams 256 64] ...`: where the time of a
load goes, in an engine without its front door: steps of decodes, steps with prompts, and the GPU's idle time between.

All requests come at once, as those of `tests/bench/peer.py` do, and have as many blocks of the cache as a server has
there; --blocks names another number. What was preempted is computed again in steps with prompts.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch

from appliance.engine.engine import Engine
from appliance.engine.runner import ComputedStep, LaunchedStep, Runner
from appliance.engine.scheduler import Scheduled
from tests.bench.shapes import SHAPES, write
from tests.gpu.bench.mixed_steps import submit
from tests.parity.conftest import make_engine
from tests.running import temporary_home

BLOCKS = 8739  # of qwen3-8b, with 0.45 of an H100's memory
TOKENS_IN, TOKENS_OUT = 128, 512
GROUP = 64  # steps are shown by decodes, so many together


class Launched(NamedTuple):
    how: str
    decodes: int
    prompt_tokens: int
    begin: torch.cuda.Event
    end: torch.cuda.Event


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--streams", type=int, nargs="+", default=[256, 64])
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    if options.layers:
        shape = shape.with_layers(options.layers)
    with temporary_home() as home:
        home.mkdir()
        engine = make_engine(
            write(home / "model", shape), device="cuda:0", dtype="bfloat16", kv_cache_dtype="bfloat16",
            max_model_len=10_240, max_num_seqs=max(options.streams), max_num_batched_tokens=2048,
            num_blocks=options.blocks, enforce_eager=False,
        )  # fmt: skip
    while engine.capture_next():
        pass
    rng = random.Random(0)
    run(engine, rng, 8, 16)  # every kernel is loaded
    gc.collect()
    gc.freeze()
    for streams in options.streams * options.rounds:
        before = engine.scheduler.num_preemptions
        with recorded(engine._runner) as steps:
            firsts, ends = run(engine, rng, streams, TOKENS_OUT)
        torch.cuda.synchronize()
        print(
            f"\n{TOKENS_IN}/{TOKENS_OUT} x {streams}: {streams * TOKENS_OUT / ends[-1]:,.0f} tok/s. Median and last of "
            f"first tokens {median(firsts):.3f}, {firsts[-1]:.3f} s, of ends {median(ends):.3f}, {ends[-1]:.3f} s; "
            f"{engine.scheduler.num_preemptions - before} preempted"
        )
        show(steps)


def run(engine: Engine, rng: random.Random, streams: int, tokens_out: int) -> tuple[list[float], list[float]]:
    """Seconds to the first tokens and to the last ones, in order."""
    for _ in range(streams):
        submit(engine, str(rng.random()), rng, TOKENS_IN, tokens_out)
    began = time.perf_counter()
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    while not engine.idle:
        outputs = engine.step()
        now = time.perf_counter() - began
        for output in outputs:
            first.setdefault(output.request_id, now)
            last[output.request_id] = now
    return sorted(first.values()), sorted(last.values())


@contextmanager
def recorded(runner: Runner) -> Iterator[list[Launched]]:
    """The steps that are launched within the block."""
    found: list[Launched] = []
    compute, sample = runner.compute, runner.sample

    def computed(step: Sequence[Scheduled]) -> ComputedStep:
        before, begin, end = dict(runner.steps), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        result = compute(step)
        (how,) = (kind.value for kind, count in runner.steps.items() if count > before.get(kind, 0))
        prompts = [item.num_tokens for item in step if not item.is_decode]
        found.append(Launched(how, len(step) - len(prompts), sum(prompts), begin, end))
        return result

    def sampled(step: ComputedStep) -> LaunchedStep:
        result = sample(step)
        found[-1].end.record()
        return result

    replaced: Any = runner
    replaced.compute, replaced.sample = computed, sampled
    try:
        yield found
    finally:
        del replaced.compute, replaced.sample


def show(steps: Sequence[Launched]) -> None:
    took: dict[tuple[str, bool, int], list[float]] = defaultdict(list)
    for step in steps:
        kind = step.how, step.prompt_tokens > 0, -(-step.decodes // GROUP) * GROUP
        took[kind].append(step.begin.elapsed_time(step.end))
    idle = sum(step.end.elapsed_time(after.begin) for step, after in pairwise(steps))
    whole = steps[0].begin.elapsed_time(steps[-1].end)
    print(f"  {idle / whole:6.1%}  between steps")
    for (how, prompts, decodes), times in sorted(took.items(), key=lambda each: -sum(each[1])):
        print(
            f"  {sum(times) / whole:6.1%}  {len(times)} steps of {median(times):.2f} ms, up to {decodes} decodes"
            f"{' and prompts' * prompts} ({how})"
        )


if __name__ == "__main__":
    main()
