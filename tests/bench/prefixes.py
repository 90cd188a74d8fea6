"""`make bench-prefixes`: how much of the prompts of conversations is found in the cache of a model with recurrent
layers, as a share of what one with attention alone would find.

The scheduler and its cache manager run as in an engine; what would be computed is not, so that no model is needed.
"""

from __future__ import annotations

import argparse
import random
import sys

from appliance.checkpoint.memory import COPIES_PER_SEQUENCE
from appliance.core_protocol import SamplingParams
from appliance.engine.block_pool import BlockPool
from appliance.engine.cache_manager import CacheManager
from appliance.engine.request import Request
from appliance.engine.scheduler import Limits, Scheduler
from appliance.engine.snapshots import Snapshots
from tests.bench.table import Figure, conclude

GOAL = 0.9
BLOCK_SIZE, VOCABULARY = 16, 30_000
STREAMS, NUM_BLOCKS, CONTEXT, MAX_BATCHED_TOKENS = 64, 40_000, 16_384, 2048
# Conversations, and copies of states, each as a multiple of the sequences that may run. Copies are what limits: one of
# each conversation is needed. Those with a goal have as many as the memory plan makes where there is room.
CASES = ((1, COPIES_PER_SEQUENCE), (3, COPIES_PER_SEQUENCE), (1, 2), (1, 1))


class Load:
    """Conversations behind a few system prompts, all of them side by side: each turn adds a question to all that was
    said before."""

    def __init__(self, seed: int, conversations: int, turns: int) -> None:
        self._rng = random.Random(seed)
        self.turns = turns
        systems = [self._words(size) for size in (120, 600, 2000)]
        self.said = [list(self._rng.choice(systems)) for _ in range(conversations)]

    def questions(self) -> list[list[int]]:
        """The prompts of the next turn, in an order of their own."""
        order = self._rng.sample(range(len(self.said)), len(self.said))
        for number in order:
            self.said[number] += self._words(self._rng.randrange(10, 400))
        return [self.said[number] for number in order]

    def answer_size(self) -> int:
        return self._rng.randrange(20, 500)

    def word(self) -> int:
        return self._rng.randrange(VOCABULARY)

    def _words(self, count: int) -> list[int]:
        return [self.word() for _ in range(count)]


def hit_rate(load: Load, snapshots: int | None) -> float:
    """The share of all prompts' tokens that is found; `snapshots` None: by attention alone."""
    rows = None if snapshots is None else Snapshots(STREAMS + 1, snapshots)
    cache = CacheManager(BlockPool(NUM_BLOCKS, BLOCK_SIZE), snapshots=rows)
    scheduler = Scheduler(Limits(STREAMS, MAX_BATCHED_TOKENS, CONTEXT), cache)
    for turn in range(load.turns):
        spoken = {}
        for number, prompt in enumerate(load.questions()):
            sampling = SamplingParams(max_tokens=load.answer_size(), ignore_eos=True)
            request = Request(f"{turn}-{number}", list(prompt), sampling, 0)
            spoken[request.request_id] = prompt
            scheduler.add(request)
        while len(scheduler):
            _step(scheduler, load, spoken)
        scheduler.check_books()
    return scheduler.prompt_tokens_cached / scheduler.prompt_tokens_seen


def _step(scheduler: Scheduler, load: Load, spoken: dict[str, list[int]]) -> None:
    step = scheduler.schedule()
    scheduler.launched(step)
    for request in scheduler.complete(step):
        if request.accept(load.word(), frozenset(), CONTEXT) is not None:
            spoken[request.request_id] += request.output_token_ids
            scheduler.finish(request)


def figures(streams: int, turns: int, seeds: int) -> list[Figure]:
    found = []
    for conversations, copies in CASES:
        loads = [(seed, conversations * streams, turns) for seed in range(seeds)]
        alone = [hit_rate(Load(*load), None) for load in loads]
        shared = [hit_rate(Load(*load), copies * streams) for load in loads]
        shares = [with_states / most for with_states, most in zip(shared, alone, strict=True)]
        what = f"{conversations * streams} conversations, {copies * streams} copies: found, of what attention finds"
        goal = GOAL if copies >= COPIES_PER_SEQUENCE else None
        name = f"{conversations}_{copies}"
        found.append(Figure(f"share_{name}", what, shares, goal, "x", at_least=True))
        found.append(Figure(f"attention_{name}", "    attention alone, of all tokens of prompts", alone, None, "x"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.prefixes", description=__doc__)
    parser.add_argument("--turns", type=int, default=6, help="of each conversation")
    parser.add_argument("--seeds", type=int, default=3, help="loads, of which the median counts")
    options = parser.parse_args()
    return conclude(figures(STREAMS, options.turns, options.seeds))


if __name__ == "__main__":
    sys.exit(main())
