"""Hours of traffic for cache manager and scheduler, on the simulated device and a simulated clock, over every kind of
cache: calm and storms, long prompts and short, conversations, several answers to one prompt, clients that leave,
damaged sequences, pools with hardly room for one. No shortage raises, every request ends with the tokens of a run
alone, and nothing is left behind.

    python -m tests.engine.traffic --requests 50000
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from appliance.engine.block_pool import BlockPool
from appliance.engine.request import Request
from appliance.engine.speculation.drafts import Drafts
from tests.engine.simulated import Guesses, Run, Window, answer, prompts

# In one site, with caches of one size: then another one begins.
REQUESTS_OF_A_SITE: Final = 250
CONTEXTS: Final = 90, 200, 450
# What a step takes, and each of its tokens, in simulated seconds.
STEP_S, TOKEN_S = 0.02, 0.0002
# Between requests, while it is calm, busy, and in a storm.
APART_S: Final = 6.0, 0.5, 0.01
# How long a client waits that does.
PATIENCE_S: Final = 0.05, 1.0, 30.0


class Kind(NamedTuple):
    """What the layers of a model keep. Latents, and the keys of indexers, are pages of every token like any other."""

    every_token: bool = True
    num_windows: int = 0
    states: bool = False
    block_sizes: tuple[int, ...] = (1, 4, 16)
    drafts: bool = False


KINDS: Final = {
    "keys and values": Kind(),
    "latents in large blocks": Kind(block_sizes=(32, 64)),
    "windows": Kind(every_token=False, num_windows=1),
    "windows of two lengths": Kind(every_token=False, num_windows=2),
    "windows in some layers": Kind(num_windows=1),
    "recurrent states": Kind(states=True),
    "compressed entries, rings and tails": Kind(states=True, block_sizes=(32, 64)),
    "keys and values, drafts": Kind(drafts=True),
    "windows in some layers, drafts": Kind(num_windows=1, drafts=True),
    "recurrent states, drafts": Kind(states=True, drafts=True),
    "rings, tails and windows, drafts": Kind(states=True, num_windows=1, block_sizes=(32, 64), drafts=True),
}


@dataclass
class Site:
    """One engine, and the people who use it."""

    kind: Kind
    seed: int
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rng = rng = random.Random(self.seed)
        self._context = rng.choice(CONTEXTS)
        self._run = _run(self.kind, rng, self._context)
        self._said: list[list[int]] = []
        self._prompts = prompts(rng, self._context, self._said)
        self._asked: dict[str, tuple[list[int], int, bool]] = {}  # prompt, most tokens, whether to go on behind an end
        self._left: set[str] = set()
        self._clock = 0.0
        self._events: list[tuple[float, int, str]] = []  # at that time: a request arrives (""), or one is given up

    def serve(self, count: int) -> None:
        """`count` requests, from the first's arrival to the last's end."""
        at, pace = 0.0, APART_S[0]
        for number in range(count):
            if self._rng.random() < 0.1:
                pace = self._rng.choice(APART_S)
            at += self._rng.expovariate(1 / pace)
            heapq.heappush(self._events, (at, number, ""))
        steps = idle = 0
        while self._events or len(self._run.scheduler) or self._run.in_flight is not None:
            self._let_time_pass()
            step = self._run.step(check_books=steps % 16 == 0)
            self._clock += STEP_S + TOKEN_S * sum(item.num_tokens for item in step)
            steps += 1
            idle = 0 if step else idle + 1
            assert idle < 4 or not len(self._run.scheduler), "requests wait, and nothing is computed"
            if step and self._rng.random() < 0.002:
                self._damage(self._rng.choice(step).request)
        self._settle(steps)

    def _let_time_pass(self) -> None:
        """What happens until now, or next where there is nothing to do."""
        if self._events and not len(self._run.scheduler) and self._run.in_flight is None:
            self._clock = max(self._clock, self._events[0][0])
        while self._events and self._events[0][0] <= self._clock:
            at, number, leaves = heapq.heappop(self._events)
            if not leaves:
                self._arrive(at, number)
            elif (request := self._run.scheduler.get(leaves)) is not None:
                self._leave(request, "given up")

    def _arrive(self, at: float, number: int) -> None:
        rng = self._rng
        self._said += [self._asked[done][0] + self._run.answers[done] for done in list(self._run.answers)[-2:]]
        del self._said[:-12]
        prompt, most, goes_on = next(self._prompts), rng.choice([1, 5, 20, 80]), rng.random() < 0.5
        salt, priority = rng.choice(["", "", "", "salt"]), rng.choice([0, 0, 0, 1, -1])
        for choice in range(rng.choice([1, 1, 1, 1, 3])):
            name = f"{number}.{choice}"
            self._asked[name] = prompt, most, goes_on
            self._run.add(name, list(prompt), most, priority, salt, ignore_eos=goes_on)
            self.counts["requests"] += 1
            if rng.random() < 0.15:
                heapq.heappush(self._events, (at + rng.expovariate(1 / rng.choice(PATIENCE_S)), number, name))

    def _damage(self, request: Request) -> None:
        """Its numbers are not finite: what nobody else holds of it is forgotten, as the engine does."""
        scheduler = self._run.scheduler
        if scheduler.is_live(request):
            others = {block for other in scheduler.running if other is not request for block in other.blocks}
            scheduler.cache.forget(set(request.blocks) - others, [request])
            self._leave(request, "damaged")

    def _leave(self, request: Request, how: str) -> None:
        self._left.add(request.request_id)
        self.counts[how] += 1
        self._run.abort(request)

    def _settle(self, steps: int) -> None:
        run, scheduler = self._run, self._run.scheduler
        scheduler.check_books()
        assert not scheduler.running
        assert scheduler.cache.usage == 0, "blocks are held by nobody"
        for name, (prompt, most, goes_on) in self._asked.items():
            if name not in self._left:
                assert run.answers[name] == answer(prompt, most, self._context, ignore_eos=goes_on), name
        self.counts["steps"] += steps
        self.counts["simulated seconds"] += int(self._clock)
        self.counts["preemptions"] += scheduler.num_preemptions
        self.counts["tokens of prompts"] += scheduler.prompt_tokens_seen
        self.counts["found"] += scheduler.prompt_tokens_cached
        if scheduler.drafts is not None:
            self.counts["drafts"] += scheduler.drafts.num_drafted
            self.counts["accepted"] += scheduler.drafts.num_accepted


def _run(kind: Kind, rng: random.Random, context: int) -> Run:
    """An engine with the least of each pool, or more."""
    size = rng.choice(kind.block_sizes)

    def more(least: int) -> int:
        return least + rng.choice([0, 1, 3, least, 4 * least])

    windows = []
    for window in sorted(rng.sample([1, 3, 16, 50, context // 2, context - 1], kind.num_windows), reverse=True):
        windows.append(Window(window, more(BlockPool(1, size, window).most_held(context, chunk=2))))
    seqs = rng.choice([1, 4, 12])
    return Run(
        num_blocks=more(-(-context // size)) if kind.every_token else None,
        block_size=size,
        seqs=seqs,
        budget=rng.choice([1, 7, 40, 256]),
        context=context,
        snapshots=rng.choice([0, 1, 4, 4 * seqs]) if kind.states else None,
        windows=windows,
        drafts=Drafts(Guesses(rng), 3, 2 * seqs) if kind.drafts else None,
        overlaps=rng.random() < 0.6,
    )


def serve(kind: Kind, seed: int, count: int = REQUESTS_OF_A_SITE) -> Counter[str]:
    """What happened in one site."""
    site = Site(kind, seed)
    try:
        site.serve(count)
    except Exception as error:
        error.add_note(f"Site({kind}, seed={seed}).serve({count}) repeats it")
        raise
    return site.counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.traffic", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=50_000, help="of all kinds together")
    parser.add_argument("--seed", type=int, default=0, help="of the first site")
    options = parser.parse_args()
    totals = {name: Counter[str]() for name in KINDS}
    started, seed = time.perf_counter(), options.seed
    while sum(found["requests"] for found in totals.values()) < options.requests:
        for name, kind in KINDS.items():
            totals[name] += serve(kind, seed)
            seed += 1
    for name, found in totals.items():
        print(f"{name}: {', '.join(f'{value:,} {what}' for what, value in found.items())}")
    everything = sum(totals.values(), Counter[str]())
    hours = everything["simulated seconds"] / 3600
    print(f"{everything['requests']:,} requests, {hours:,.1f} simulated hours, {time.perf_counter() - started:,.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
