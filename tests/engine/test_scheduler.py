"""The scheduler, driven by a model that does nothing: its promises on plain data."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.core_protocol import FinishReason, SamplingParams
from appliance.engine import cache_manager
from appliance.engine.block_pool import BlockPool, block_hash
from appliance.engine.cache_manager import CacheManager
from appliance.engine.request import Request
from appliance.engine.scheduler import Limits, Scheduled, Scheduler

EOS = frozenset({0})


def scheduler(num_blocks=16, block_size=4, seqs=4, budget=16, context=48, prefix_caching=True) -> Scheduler:
    cache = CacheManager(BlockPool(num_blocks, block_size), prefix_caching=prefix_caching)
    return Scheduler(Limits(seqs, budget, context), cache)


def request(name: str, prompt: int | list[int], max_tokens=4, priority=0) -> Request:
    ids = list(range(1, prompt + 1)) if isinstance(prompt, int) else prompt
    return Request(name, ids, SamplingParams(max_tokens=max_tokens, ignore_eos=True), seed=0, priority=priority)


def next_token(r: Request) -> int:
    """A stand-in for the model: the next token depends on all tokens before it."""
    return hash(tuple(r.tokens(0, r.num_tokens))) % 50 + 1


def run_step(s: Scheduler) -> tuple[list[Scheduled], list[Request]]:
    step = s.schedule()
    s.launched(step)
    finished = []
    for sampled in s.complete(step):
        if sampled.accept(next_token(sampled), EOS, s.limits.max_model_len):
            s.finish(sampled)
            finished.append(sampled)
    s.check_books()
    return step, finished


def names(step: list[Scheduled]) -> list[tuple[str, int]]:
    return [(item.request.request_id, item.num_tokens) for item in step]


def test_a_long_prompt_is_computed_in_chunks_while_others_decode():
    s = scheduler(budget=8)
    s.add(request("short", 3, max_tokens=10))
    assert names(run_step(s)[0]) == [("short", 3)]
    s.add(request("long", 20))
    assert names(run_step(s)[0]) == [("short", 1), ("long", 7)]
    assert names(run_step(s)[0]) == [("short", 1), ("long", 7)]
    assert names(run_step(s)[0]) == [("short", 1), ("long", 6)]
    assert names(run_step(s)[0]) == [("short", 1), ("long", 1)]


def test_first_come_first_served_and_nobody_overtakes():
    s = scheduler(num_blocks=12)
    s.add(request("a", [9] * 30, max_tokens=2))
    s.add(request("too big for now", 31, max_tokens=1))
    s.add(request("small", 2, max_tokens=1))
    while len(s) == 3:
        step, finished = run_step(s)
        assert [item.request.request_id for item in step] == ["a"]
    assert [r.request_id for r in finished] == ["a"]
    assert run_step(s)[0][0].request.request_id == "too big for now"


def test_a_lower_priority_number_runs_first():
    s = scheduler(seqs=1)
    s.add(request("later", 2, max_tokens=1, priority=1))
    s.add(request("sooner", 2, max_tokens=1, priority=0))
    assert [r.request_id for r in run_step(s)[1]] == ["sooner"]


def test_a_shared_prefix_is_computed_once():
    s = scheduler(budget=64)
    s.add(request("first", 16, max_tokens=1))
    assert names(run_step(s)[0]) == [("first", 16)]
    again = request("again", 16, max_tokens=1)
    s.add(again)
    assert names(run_step(s)[0]) == [("again", 4)], "the last block is computed again: its last token must be"
    assert again.num_cached_tokens == 12
    assert (s.prompt_tokens_cached, s.prompt_tokens_seen) == (12, 32)


def test_without_prefix_caching_nothing_is_shared():
    s = scheduler(budget=64, prefix_caching=False)
    for name in ("first", "again"):
        s.add(request(name, 16, max_tokens=1))
        assert names(run_step(s)[0]) == [(name, 16)]


def test_when_the_cache_is_full_the_last_in_rank_is_preempted_and_finishes_later():
    s = scheduler(num_blocks=12, budget=64)
    for name in ("a", "b", "c"):
        s.add(request(name, [ord(name)] * 8, max_tokens=20))
    done = []
    for _ in range(200):
        done += [r.request_id for r in run_step(s)[1]]
        if not len(s):
            break
    assert sorted(done) == ["a", "b", "c"]
    assert s.num_preemptions > 0
    assert done[0] == "a"


def test_an_aborted_request_frees_its_place_at_once():
    s = scheduler(seqs=1)
    s.add(request("gone", 8, max_tokens=100))
    s.add(request("next", 4, max_tokens=1))
    run_step(s)
    gone = s.get("gone")
    assert gone is not None
    s.finish(gone)
    assert [r.request_id for r in run_step(s)[1]] == ["next"]
    assert s.cache.usage == 0


def test_requests_that_end_while_they_wait_leave_nothing_in_the_queue():
    """A client that submits and aborts against a full engine does not make it grow."""
    s = scheduler(seqs=1)
    s.add(request("runs", 4, max_tokens=1000))
    run_step(s)
    for n in range(1000):
        s.add(request(f"gone {n}", 40))
        s.finish(s.get(f"gone {n}"))
    s.add(request("waits", 4))
    assert s.num_waiting == 1
    assert len(s._waiting) < 100


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (request("x", 48), "48"),
        (request("x", []), "tokens"),
        (request("there", 1), "there"),
    ],
)
def test_what_can_never_run_is_refused_with_the_reason(bad, words):
    s = scheduler()
    s.add(request("there", 1))
    assert words in (s.refusal(bad) or "")


def test_a_request_ends_by_stop_token_eos_or_length():
    def ending(token: int, **params: Any) -> FinishReason | None:
        r = Request("r", [5, 6], SamplingParams(**{"max_tokens": 3, **params}), seed=0)
        return r.accept(token, EOS, max_model_len=10)

    assert ending(0) is FinishReason.STOP
    assert ending(0, ignore_eos=True) is None
    assert ending(0, min_tokens=1) is None, "the stop token itself does not count"
    assert ending(9, stop_token_ids=(9,)) is FinishReason.STOP
    assert ending(9, max_tokens=1) is FinishReason.LENGTH
    full = Request("r", [1] * 9, SamplingParams(max_tokens=100), seed=0)
    assert full.accept(4, EOS, max_model_len=10) is FinishReason.LENGTH


workload = st.lists(
    st.tuples(st.integers(1, 47), st.integers(1, 30), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=10
)


@settings(max_examples=100, deadline=None)
@given(workload, st.integers(12, 30), st.integers(1, 5), st.integers(1, 40), st.booleans(), st.integers())
def test_any_workload_ends_with_the_right_tokens_within_every_limit(load, num_blocks, seqs, budget, caching, seed):
    """Random prompts that share prefixes, random arrivals, priorities and aborts, in a cache that is often too small:
    no step breaks a limit, the books balance, everything ends, and each request gets what it would get alone."""
    chance = random.Random(seed)
    s = scheduler(num_blocks=num_blocks, seqs=seqs, budget=budget, prefix_caching=caching)
    everyone = [
        request(f"r{i}", [kind] * n if kind else list(range(1, n + 1)), max_tokens, priority)
        for i, (n, max_tokens, priority, kind) in enumerate(load)
    ]
    waiting, aborted = list(everyone), set()
    for _ in range(5000):
        if waiting and chance.random() < 0.5:
            s.add(waiting.pop(0))
        if len(s) and chance.random() < 0.03:
            victim = chance.choice(sorted(r.request_id for r in s))
            aborted.add(victim)
            s.finish(s.get(victim))
        step, _ = run_step(s)
        assert sum(item.num_tokens for item in step) <= budget
        assert len(step) <= seqs
        assert step or not len(s), "work is there and nothing is done"
        assert [i.num_tokens > 1 for i in step] == sorted(i.num_tokens > 1 for i in step)
        if not waiting and not len(s):
            break
    assert not len(s)
    assert s.cache.usage == 0
    for r in everyone:
        if r.request_id in aborted:
            continue
        alone = Request(r.request_id, r.prompt_token_ids, r.sampling, seed=0)
        while not alone.accept(next_token(alone), EOS, s.limits.max_model_len):
            pass
        assert r.output_token_ids == alone.output_token_ids


def long_prompt(kind: int, tokens: int) -> list[int]:
    return [kind * 1000 + i for i in range(tokens)]


def test_a_short_prompt_beside_a_long_one_is_done_in_the_next_step():
    """However long the other is, and even behind several of them; the oldest of those goes on at every step."""
    s = scheduler(num_blocks=2000, seqs=16, budget=64, context=4000)
    for n in range(4):
        s.add(request(f"long {n}", long_prompt(n + 1, 1500), max_tokens=1))
    run_step(s)
    s.add(request("short", [5, 6, 7], max_tokens=1))
    step, finished = run_step(s)
    assert [r.request_id for r in finished] == ["short"]
    assert dict(names(step)) == {"short": 3, "long 0": 61}


def test_prompts_that_come_together_are_computed_one_after_the_other():
    """Side by side all would begin to answer when the last does now."""
    s = scheduler(num_blocks=2000, seqs=16, budget=64, context=4000)
    for n in range(3):
        s.add(request(f"{n}", long_prompt(n + 1, 150), max_tokens=1))
    ends: dict[str, int] = {}
    for step in range(1, 9):
        ends |= {r.request_id: step for r in run_step(s)[1]}
    assert ends == {"0": 3, "1": 5, "2": 8}


def test_the_first_in_rank_gets_half_and_nothing_of_the_budget_is_left_over():
    """However many shorter ones arrive."""
    s = scheduler(num_blocks=2000, seqs=64, budget=64, context=4000)
    s.add(request("long", long_prompt(1, 320), max_tokens=1))
    for n in range(20):
        s.add(request(f"{n}", long_prompt(n + 2, 40), max_tokens=1))
    assert [dict(names(run_step(s)[0])) for _ in range(3)] == [
        {"long": 32, "0": 32},
        {"long": 32, "0": 8, "1": 24},
        {"long": 32, "1": 16, "2": 16},
    ]


def test_prompts_of_a_lower_priority_wait_for_those_of_a_higher_one():
    s = scheduler(num_blocks=2000, seqs=16, budget=64, context=4000)
    s.add(request("later", long_prompt(1, 300), max_tokens=1, priority=1))
    run_step(s)
    s.add(request("sooner", long_prompt(2, 130), max_tokens=1, priority=0))
    assert names(run_step(s)[0]) == [("sooner", 64)]
    assert names(run_step(s)[0]) == [("sooner", 64)]
    assert dict(names(run_step(s)[0])) == {"sooner": 2, "later": 62}


def test_prompts_that_begin_alike_are_computed_once_though_they_come_together():
    """As the n answers to one prompt do; and nobody else waits for that."""
    s = scheduler(num_blocks=2000, seqs=16, budget=64, context=4000)
    for n in range(5):
        s.add(request(f"choice {n}", long_prompt(1, 402), max_tokens=1))
    s.add(request("other", [5, 6, 7], max_tokens=1))
    computed: dict[str, int] = {}
    first, _ = run_step(s)
    assert {name for name, _ in names(first)} == {"choice 0", "other"}
    for name, count in names(first):
        computed[name] = count
    while len(s):
        for name, count in names(run_step(s)[0]):
            computed[name] = computed.get(name, 0) + count
    assert computed == {"choice 0": 402, "other": 3} | {f"choice {n}": 2 for n in range(1, 5)}


def test_one_of_a_higher_priority_does_not_wait_for_a_lower_ones_blocks():
    s = scheduler(num_blocks=2000, seqs=16, budget=16, context=4000)
    s.add(request("later", long_prompt(1, 100), max_tokens=1, priority=1))
    run_step(s)
    s.add(request("sooner", long_prompt(1, 100), max_tokens=1, priority=0))
    assert [name for name, _ in names(run_step(s)[0])] == ["sooner"]


def test_no_step_hashes_more_than_its_share_of_a_long_prompt(monkeypatch):
    """Neither one that nobody has sent before, nor one that is all in the cache; others go on meanwhile."""
    hashed = 0

    def counting(parent: bytes, token_ids: list[int]) -> bytes:
        nonlocal hashed
        hashed += 1
        return block_hash(parent, token_ids)

    monkeypatch.setattr(cache_manager, "block_hash", counting)
    monkeypatch.setattr(cache_manager, "HASHED_BLOCKS", 32)
    s = scheduler(num_blocks=2000, budget=200, context=4100)
    prompt = long_prompt(1, 4001)
    for name in ("cold", "warm"):
        s.add(request(name, prompt, max_tokens=1))
        s.add(request(f"beside {name}", [5, 6], max_tokens=1))
        done: list[str] = []
        while len(s):
            hashed = 0
            _, finished = run_step(s)
            done += [r.request_id for r in finished]
            assert hashed <= 32 + 200 // 4 + 2
        assert done[0] == f"beside {name}"
    assert s.prompt_tokens_cached == 4000
