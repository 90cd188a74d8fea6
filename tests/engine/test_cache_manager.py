"""Prefixes of pages and states, on a simulated device that knows of each page and row which tokens made it: any hit on
the wrong thing shows at once. Plain data, no torch."""

from __future__ import annotations

import os
import random
import time

import pytest

from appliance.checkpoint.memory.cache_shape import CacheShape, Windowed
from appliance.checkpoint.memory.pools import divided, most_sequences, needs
from appliance.engine.block_pool import BlockPool
from appliance.engine.cache_manager import MOST_FORKS, TURN_GRID
from appliance.engine.request import Request
from appliance.engine.snapshots import Snapshots
from appliance.engine.speculation.drafts import Drafts
from tests.engine import simulated
from tests.engine.simulated import Guesses, Run, Window, answer, prompts

SECONDS = float(os.environ.get("INGOT_FUZZ_SECONDS", "8"))
"""For each of the fuzzed runs; an hour by hand."""


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
    monkeypatch.setattr(simulated, "following", lambda state: state % 5000 + 1)
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


# ------------------------------------------------------------------------------------------------------------- windows


def test_a_long_sequence_holds_its_window_and_a_chunk():
    """Of 2,000 tokens in a pool of 20 blocks, which it shares with nobody: 40 of a window, and two chunks of 16."""
    run = Run(num_blocks=None, windows=[Window(40, 20)], context=2100, budget=16, snapshots=None, overlaps=True)
    request = run.add("long", numbers(2000), 30)
    most = 0
    while len(run.scheduler):
        run.step()
        most = max(most, len(request.pages[0].ids) if request.pages else 0)
    assert run.answers["long"] == answer(numbers(2000), 30, 2100)
    assert most <= 10 + 1 + 2 * 4


@pytest.mark.parametrize("num_blocks", [None, 40], ids=["only windows", "mixed"])
@pytest.mark.parametrize("length", [*range(1, 20), 39, 40, 41, 60, 61])
def test_a_hit_needs_the_last_window_and_no_more(num_blocks, length):
    """What lies before was let go, and is soon evicted; the border is found all the same."""
    run = Run(num_blocks=num_blocks, windows=[Window(9, 14)], context=80, budget=8, snapshots=None)
    ask(run, "cold", numbers(length))
    assert ask(run, "again", numbers(length)).num_cached_tokens == (length - 1) // 4 * 4
    assert ask(run, "longer", [*numbers(length), 7]).num_cached_tokens == length // 4 * 4


def test_a_border_whose_window_was_evicted_is_not_hit_though_all_before_it_is_known():
    run = Run(num_blocks=100, windows=[Window(9, 14)], context=80, budget=8, snapshots=None)
    ask(run, "cold", numbers(40))
    for number in range(4):
        ask(run, f"other {number}", numbers(60, 500 + 100 * number))
    assert ask(run, "again", numbers(40)).num_cached_tokens == 0


def test_what_a_window_has_left_goes_before_what_another_prompt_may_continue():
    run = Run(num_blocks=None, windows=[Window(9, 30)], context=400, budget=8, snapshots=None)
    ask(run, "first", numbers(20))
    ask(run, "long", numbers(300, 500))
    assert ask(run, "again", numbers(20)).num_cached_tokens == 16


def test_a_beginning_that_many_share_lasts_though_each_of_them_leaves_it():
    run = Run(num_blocks=None, windows=[Window(9, 60)], context=400, budget=8, snapshots=None)
    system = numbers(100)
    hits = [ask(run, str(n), [*system, *[n] * 30], 40).num_cached_tokens for n in range(1, 9)]
    assert hits == [0] + [100] * 7


def test_windows_of_many_sequences_fit_where_their_contexts_would_not():
    """Four of 400 tokens in 60 blocks of 4, side by side: nobody is preempted for another."""
    run = Run(num_blocks=None, windows=[Window(32, 60)], context=500, budget=32, snapshots=None, seqs=4)
    for number in range(4):
        run.add(str(number), numbers(400, 1000 * number), 20)
    run.step()
    assert run.scheduler.num_running == 4
    run.drain()
    assert run.scheduler.num_preemptions == 0
    assert run.answers == {str(n): answer(numbers(400, 1000 * n), 20, 500) for n in range(4)}


@pytest.mark.parametrize("windows", [(40,), (40, 9)], ids=str)
@pytest.mark.parametrize("every", [0, 1024], ids=["only windows", "mixed"])
def test_as_many_sequences_run_at_a_time_as_the_plan_says(every, windows):
    shape = CacheShape(bytes_per_token=every, windows=tuple(Windowed(window, 1024) for window in windows))
    limits = {"block_size": 4, "chunk": 16, "spare": 1}
    wanted = needs(shape, 200, sequences=32, remembers=True, **limits)
    for room in range(sum(need.least * need.block_bytes for need in wanted), 4 << 20, 200_000):
        pools = divided(room, wanted, capped=True)
        count = most_sequences(pools, 200, **limits)
        run = Run(
            num_blocks=pools[0].num_blocks if every else None,
            windows=[Window(pool.window, pool.num_blocks) for pool in pools if pool.window is not None],
            context=200, budget=16, snapshots=None, seqs=32,
        )  # fmt: skip
        for number in range(min(count, 32)):
            run.add(str(number), numbers(150, 1000 * number), 50)
        for _ in range(3):  # a step hashes so many blocks
            run.step()
        assert run.scheduler.num_running == min(count, 32) > 0
        run.drain()
        assert run.scheduler.num_preemptions == 0, (room, count)


def test_the_first_prompt_goes_on_in_the_least_pool_whoever_else_asks():
    """Window, block, and two tokens: everybody is computed token by token, and ends."""
    run = Run(num_blocks=None, windows=[Window(9, 5)], context=300, budget=64, snapshots=None, seqs=4, overlaps=True)
    for number in range(4):
        run.add(str(number), numbers(100, 1000 * number), 20)
    run.drain()
    assert run.answers == {str(n): answer(numbers(100, 1000 * n), 20, 300) for n in range(4)}


# ------------------------------------------------------------------------------------------------------------- fuzzing


@pytest.mark.parametrize("overlaps", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("windowed", [False, True], ids=["full", "windows"])
def test_any_mix_of_requests_gets_the_tokens_of_a_run_alone(windowed, overlaps):
    """Shared prefixes, forks, turns, aborts, priorities, preemptions, evictions, drafts and odd chunks."""
    until = time.process_time() + SECONDS / 2
    seed = reached = preempted = 0
    while time.process_time() < until or seed < 20:
        hits, preemptions = _fuzz(seed, windowed, overlaps)
        reached, preempted, seed = reached + hits, preempted + preemptions, seed + 1
    assert reached > seed // 3
    assert preempted > seed // 8


def _fuzz(seed: int, windowed: bool, overlaps: bool) -> tuple[int, int]:
    rng = random.Random(seed)
    block_size, context = rng.choice([1, 3, 4, 16, 33]), rng.choice([60, 150])
    snapshots = rng.choice([None, 0, 1, 2, 5, 20])
    drafts = Drafts(Guesses(rng), 3, 8) if rng.random() < 0.5 else None
    windows = [_window(rng, block_size, context) for _ in range(rng.choice([1, 1, 2]) if windowed else 0)]
    least = -(-context // block_size)
    run = Run(
        num_blocks=None if windowed and rng.random() < 0.5 else least + rng.randrange(0, 2 * least),
        block_size=block_size,
        seqs=rng.randrange(1, 6),
        context=context,
        budget=rng.choice([1, 5, 17, 64]),
        snapshots=snapshots,
        windows=sorted(windows, reverse=True),
        drafts=drafts,
        overlaps=overlaps,
    )
    asked: dict[str, tuple[list[int], int]] = {}
    said: list[list[int]] = []
    aborted = set()
    asking = prompts(rng, context, said)
    for number in range(rng.randrange(5, 40)):
        name, prompt, most = f"{seed}-{number}", next(asking), rng.randrange(1, 60)
        asked[name] = prompt, most
        run.add(name, prompt, most, rng.choice([0, 0, 0, 1]), rng.choice(["", "", "salt"]))
        for _ in range(rng.choice([0, 0, 1, 3, 30])):
            run.step()
        if rng.random() < 0.2 and (live := list(run.scheduler)):
            dropped = rng.choice(live)
            aborted.add(dropped.request_id)
            run.abort(dropped)
        said += [asked[done][0] + run.answers[done] for done in list(run.answers)[-2:]]
    run.drain()
    for name, (prompt, most) in asked.items():
        if name not in aborted:
            assert run.answers[name] == answer(prompt, most, context), name
    return run.scheduler.prompt_tokens_cached > 0, run.scheduler.num_preemptions


def _window(rng: random.Random, block_size: int, context: int) -> Window:
    """With the least of a pool that a sequence can be computed in, or more."""
    window = rng.choice([1, 2, 5, 16, 40, context - 1])
    least = BlockPool(1, block_size, window).most_held(context, chunk=2)
    return Window(window, least + rng.randrange(0, 2 * least + 2))
