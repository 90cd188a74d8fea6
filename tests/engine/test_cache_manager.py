"""Prefixes of pages and states, on a simulated device that keeps in each page and row the tokens that made it: any hit
on the wrong thing shows at once. Plain data, no torch."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest

from appliance.engine.block_pool import BlockPool
from appliance.engine.cache_manager import MOST_FORKS, TURN_GRID, CacheManager
from appliance.engine.request import Request
from appliance.engine.scheduler import Limits, Scheduled, Scheduler
from appliance.engine.snapshots import FRESH, Snapshots
from appliance.protocol import SamplingParams

EOS = frozenset({0})
SECONDS = float(os.environ.get("INGOT_FUZZ_SECONDS", "8"))
"""For each of the fuzzed runs; an hour by hand."""


def following(tokens: tuple[int, ...]) -> int:
    """The model: a token that depends on all before it, and now and then ends the answer."""
    return hash(tokens) % 23


def answer(prompt: list[int], max_tokens: int, context: int) -> list[int]:
    """Of a run that is alone, and computes everything."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens and len(tokens) < context:
        tokens.append(following(tuple(tokens)))
        if tokens[-1] in EOS:
            break
    return tokens[len(prompt) :]


class Device:
    """Computes steps as a hybrid model would: with pages by position, and a state that only goes forward."""

    def __init__(self, block_size: int, has_states: bool) -> None:
        self.block_size, self.has_states = block_size, has_states
        self.pages: dict[tuple[int, int], tuple[int, ...]] = {}  # (block, offset) -> the tokens up to there
        self.rows: dict[int, tuple[int, ...]] = {FRESH: ()}
        self.slots: dict[int, tuple[int, ...]] = {}

    def compute(self, step: list[Scheduled]) -> list[int]:
        """The tokens that the step's requests sample."""
        slots = [item.request.slot for item in step]
        for item in step:
            if item.loads is not None:
                self.slots[item.request.slot] = self.rows[item.loads]
        sampled = [self._compute(item) for item in step]
        for item, slot in zip(step, slots, strict=True):
            if item.saves is not None:
                self.rows[item.saves] = self.slots[slot]
        return [token for token, item in zip(sampled, step, strict=True) if item.samples]

    def _compute(self, item: Scheduled) -> int:
        request = item.request
        state = self.slots[request.slot] if self.has_states else self._page(request, item.start - 1)
        assert len(state) == item.start, f"{request.request_id} begins with the state of {len(state)} tokens"
        given = request.tokens(item.start, item.context_len)
        for place in range(item.start, item.context_len):
            assert self._page(request, place - 1) == state, f"{request.request_id} sees another's page before {place}"
            token = given[place - item.start] if place < request.num_tokens else following(state)
            state = (*state, token)
            self.pages[request.block_ids[place // self.block_size], place % self.block_size] = state
        self.slots[request.slot] = state
        return following(state)

    def _page(self, request: Request, place: int) -> tuple[int, ...]:
        return self.pages[request.block_ids[place // self.block_size], place % self.block_size] if place >= 0 else ()


class Run:
    """A scheduler with its device, in which steps overlap or do not."""

    def __init__(
        self, *, num_blocks=24, block_size=4, seqs=4, budget=19, context=80, snapshots: int | None = 6, overlaps=False
    ) -> None:
        rows = None if snapshots is None else Snapshots(seqs + 1, snapshots)
        self.scheduler = Scheduler(
            Limits(seqs, budget, context), CacheManager(BlockPool(num_blocks, block_size), snapshots=rows)
        )
        self.device = Device(block_size, snapshots is not None)
        self.overlaps = overlaps
        self.in_flight: tuple[list[Scheduled], list[int]] | None = None
        self.answers: dict[str, list[int]] = {}

    def add(self, name: str, prompt: list[int], max_tokens: int = 8, priority: int = 0, salt: str = "") -> Request:
        request = Request(name, prompt, SamplingParams(max_tokens=max_tokens), 0, priority, salt)
        self.scheduler.add(request)
        return request

    def step(self) -> None:
        step = self.scheduler.schedule()
        launched = (step, self.device.compute(step)) if step else None
        self.scheduler.launched(step)
        self._read()
        self.in_flight = launched
        if not self.overlaps:
            self._read()
        self.scheduler.check_books()

    def _read(self) -> None:
        if self.in_flight is None:
            return
        step, sampled = self.in_flight
        self.in_flight = None
        tokens = dict(zip([item.request for item in step if item.samples], sampled, strict=True))
        for request in self.scheduler.complete([item for item in step if self.scheduler.is_live(item.request)]):
            if request.accept(tokens[request], EOS, self.scheduler.limits.max_model_len):
                self.answers[request.request_id] = request.output_token_ids
                self.scheduler.finish(request)

    def drain(self) -> None:
        for _ in range(10_000):
            if not len(self.scheduler) and self.in_flight is None:
                return
            self.step()
        raise AssertionError("the requests do not end")


def ask(run: Run, name: str, prompt: list[int], max_tokens: int = 8) -> Request:
    request = run.add(name, prompt, max_tokens)
    run.drain()
    assert run.answers[name] == answer(prompt, max_tokens, run.scheduler.limits.max_model_len)
    return request


def numbers(count: int, first: int = 100) -> list[int]:
    return list(range(first, first + count))


def test_a_prompt_that_is_asked_again_is_continued_from_its_last_border():
    run = Run()
    ask(run, "cold", numbers(30))
    assert ask(run, "again", numbers(30)).num_cached_tokens == 28
    assert ask(run, "longer", numbers(33)).num_cached_tokens == 28


@pytest.mark.parametrize("length", [3, 4, 5, 8, 9, 27, 28, 29])
def test_a_warm_run_equals_a_cold_one_at_every_border_and_beside_it(length):
    run = Run()
    for name in ("cold", "warm", "hot"):
        ask(run, name, numbers(length))


def test_a_fork_is_copied_when_it_is_seen_and_hit_the_next_time():
    run = Run(context=200, num_blocks=200, budget=64)
    common = numbers(2 * TURN_GRID + 4)
    found = [ask(run, str(n), [*common, n, n, n, n, n]).num_cached_tokens for n in range(1, 5)]
    assert found == [0, 0, len(common), len(common)]


def test_prompts_that_come_together_share_what_the_first_computes():
    run = Run(context=200, num_blocks=200, budget=16)
    common = numbers(2 * TURN_GRID)
    requests = [run.add(str(n), [*common, *[n] * 9]) for n in range(1, 5)]
    run.drain()
    assert [request.num_cached_tokens for request in requests] == [0, *[len(common)] * 3]


def test_the_next_turn_continues_the_answer():
    run = Run(context=400, num_blocks=400)
    prompt = numbers(21)
    while len(spoken := answer(prompt, 100, 400)) < 3 * TURN_GRID:  # one that does not end early
        prompt[0] += 1
    ask(run, "turn 1", prompt, 100)
    hit = ask(run, "turn 2", [*prompt, *spoken, *numbers(11, 500)]).num_cached_tokens
    assert len(prompt) + len(spoken) - hit <= TURN_GRID + 4


def test_a_state_that_was_evicted_costs_its_pages_too():
    """Pages without the state behind them are not continued from: that would be the state of no tokens."""
    run = Run(snapshots=1)
    ask(run, "first", numbers(12))
    ask(run, "second", numbers(12, 300))
    assert ask(run, "again", numbers(12)).num_cached_tokens == 0


def test_without_rows_for_copies_nothing_is_shared_and_all_is_right():
    run = Run(snapshots=0)
    ask(run, "cold", numbers(30))
    assert ask(run, "again", numbers(30)).num_cached_tokens == 0


def test_salts_keep_states_apart():
    run = Run()
    run.add("mine", numbers(20), salt="mine")
    run.drain()
    other = run.add("theirs", numbers(20), salt="theirs")
    run.drain()
    assert other.num_cached_tokens == 0


def test_a_row_is_not_given_away_while_a_sequence_is_to_begin_from_it():
    """It was admitted in a step whose budget others used up."""
    run = Run(snapshots=1, budget=4, seqs=2)
    ask(run, "first", numbers(8))
    again, other = run.add("again", numbers(8)), run.add("other", numbers(30, 300), priority=-1)
    run.drain()
    assert run.answers == {
        "first": answer(numbers(8), 8, 80), "again": answer(numbers(8), 8, 80), "other": answer(numbers(30, 300), 8, 80)
    }  # fmt: skip
    assert (again.num_cached_tokens, other.num_cached_tokens) == (4, 0)


def test_a_copy_that_is_forgotten_is_found_no_more_though_a_sequence_begins_from_it():
    snapshots = Snapshots(5, 1)
    row = snapshots.take()
    assert row == 5
    snapshots.publish(row, b"a", lasts=False)
    assert snapshots.pin(b"a") == 5
    snapshots.forget([b"a"])
    assert snapshots.find(b"a") is None
    assert snapshots.take() is None
    snapshots.check_books([], [5])
    snapshots.unpin(5)
    assert snapshots.take() == 5


def test_a_copy_from_which_several_began_lasts():
    """A system prompt in front of questions shorter than a block: its border is also the last of each prompt."""
    run = Run(block_size=16, num_blocks=400, context=800, budget=256, snapshots=6)
    system = numbers(640)
    hits = [ask(run, str(n), [*system, n, n, n], 60).num_cached_tokens for n in range(1, 12)]
    assert hits == [0] + [640] * 10


def test_forks_end_only_a_few_steps_of_a_long_prompt():
    run = Run(block_size=16, num_blocks=2000, context=8000, budget=1024, snapshots=64, seqs=2)
    long = numbers(7000)
    run.add("long", long, 1)
    for n in range(40):
        run.add(f"fork {n}", [*long[: 64 * n + 64], 7, 7], 1)
    steps = 0
    while "long" not in run.answers:
        run.step()
        steps += 1
    assert steps <= 7 + 2 * (MOST_FORKS + 2)


def test_a_damaged_sequence_takes_its_copies_with_it():
    run = Run()
    request = ask(run, "first", numbers(20))
    run.scheduler.cache.forget([], [request])
    assert ask(run, "again", numbers(20)).num_cached_tokens == 0


def test_conversations_hit_nearly_as_much_as_with_pages_alone(monkeypatch):
    """Eight of five turns each, side by side, behind two system prompts; with rows for three copies of each."""
    monkeypatch.setattr(f"{__name__}.following", lambda tokens: hash(tokens[-8:]) % 5000 + 1)
    alone, hybrid = (_conversations(snapshots) for snapshots in (None, 24))
    assert hybrid >= 0.9 * alone, (hybrid, alone)


def _conversations(snapshots: int | None) -> float:
    """The share of all prompts' tokens that was found."""
    rng = random.Random(8)
    run = Run(num_blocks=8192, block_size=16, seqs=8, budget=512, context=2500, snapshots=snapshots)
    systems = [numbers(100), numbers(300, 5000)]
    spoken = [list(rng.choice(systems)) for _ in range(8)]
    for turn in range(5):
        for number, history in enumerate(spoken):
            history += [rng.randrange(9, 5000) for _ in range(rng.randrange(20, 100))]
            run.add(f"{number}-{turn}", list(history), rng.randrange(30, 200))
            run.step()
        run.drain()
        for number, history in enumerate(spoken):
            history += run.answers[f"{number}-{turn}"]
    return run.scheduler.prompt_tokens_cached / run.scheduler.prompt_tokens_seen


# ------------------------------------------------------------------------------------------------------------- fuzzing


@pytest.mark.parametrize("overlaps", [False, True], ids=["plain", "overlapped"])
def test_any_mix_of_requests_gets_the_tokens_of_a_run_alone(overlaps):
    """Shared prefixes, forks, turns, aborts, priorities, preemptions, evictions and odd chunks."""
    until = time.process_time() + SECONDS
    seed = reached = preempted = 0
    while time.process_time() < until or seed < 20:
        hits, preemptions = _fuzz(seed, overlaps)
        reached, preempted, seed = reached + hits, preempted + preemptions, seed + 1
    assert reached > seed // 3
    assert preempted > seed // 4


def _fuzz(seed: int, overlaps: bool) -> tuple[int, int]:
    rng = random.Random(seed)
    block_size, context = rng.choice([1, 3, 4, 16, 33]), rng.choice([60, 150])
    least = -(-context // block_size)
    run = Run(
        num_blocks=least + rng.randrange(0, 2 * least),
        block_size=block_size,
        seqs=rng.randrange(1, 6),
        context=context,
        budget=rng.choice([1, 5, 17, 64]),
        snapshots=rng.choice([None, 0, 1, 2, 5, 20]),
        overlaps=overlaps,
    )
    asked: dict[str, tuple[list[int], int]] = {}
    said: list[list[int]] = []
    aborted = set()
    prompts = _prompts(rng, context, said)
    for number in range(rng.randrange(5, 40)):
        name, prompt, most = f"{seed}-{number}", next(prompts), rng.randrange(1, 60)
        asked[name] = prompt, most
        run.add(name, prompt, most, rng.choice([0, 0, 0, 1]), rng.choice(["", "", "salt"]))
        for _ in range(rng.choice([0, 0, 1, 3, 30])):
            run.step()
        if rng.random() < 0.2 and (live := list(run.scheduler)):
            dropped = rng.choice(live)
            aborted.add(dropped.request_id)
            run.scheduler.finish(dropped)
        said += [asked[done][0] + run.answers[done] for done in list(run.answers)[-2:]]
    run.drain()
    for name, (prompt, most) in asked.items():
        if name not in aborted:
            assert run.answers[name] == answer(prompt, most, context), name
    return run.scheduler.prompt_tokens_cached > 0, run.scheduler.num_preemptions


def _prompts(rng: random.Random, context: int, said: list[list[int]]) -> Iterator[list[int]]:
    """New ones, beginnings of older ones with another end, and next turns."""
    roots = [[rng.randrange(1, 9) for _ in range(rng.randrange(1, context))] for _ in range(3)]
    while True:
        root = rng.choice(roots + said[-6:])
        kept = root[: rng.randrange(len(root) + 1)] if rng.random() < 0.6 else root
        prompt = kept + [rng.randrange(1, 9) for _ in range(rng.randrange(0, 20))]
        yield prompt[: context - 1] or [1]
