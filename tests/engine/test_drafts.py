"""Drafts change how many tokens come of a step, and nothing else: the same answers, books that balance, and prefixes
that are found."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest

from appliance.core_protocol import SamplingParams, Submit, TokenOutput
from appliance.engine.block_pool import BlockPool
from appliance.engine.cache_manager import CacheManager
from appliance.engine.engine import Engine
from appliance.engine.request import Request
from appliance.engine.scheduler import Limits, Scheduled, Scheduler
from appliance.engine.speculation.acceptance import LEAST_GAIN, Acceptance
from appliance.engine.speculation.drafts import Drafts, accepted_run
from appliance.engine.speculation.ngram import NgramProposer
from appliance.models.collectives import ALONE, Group
from tests.engine.drafted import Guesser
from tests.parity.conftest import generate, make_engine
from tests.parity.ranks import ThreadGroup, together
from tests.tiny import write_checkpoint

FAMILIES = ("llama", "deepseek_v3", "glm_moe_dsa", "qwen3_next", "qwen3_5")
DRAFTS = 4


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model") / "model", request.param, seed=2)


def engine_of(folder, group: Group = ALONE, /, **changes: Any) -> Engine:
    limits = {
        "max_num_seqs": 11,
        "max_model_len": 256,
        "num_blocks": 60,
        "max_num_batched_tokens": 64,
        "num_snapshots": 6,
    }
    return make_engine(folder, group, **(limits | changes))


def drafting(folder, guesses: dict[str, list[int]] | None = None, group: Group = ALONE, /, **changes: Any) -> Engine:
    """An engine whose drafts are n-grams, or made of `guesses`."""
    engine = engine_of(folder, group, drafts="ngram", num_speculative_tokens=DRAFTS, **changes)
    if guesses is not None:
        assert engine.scheduler.drafts is not None
        engine.scheduler.drafts._proposer = Guesser(guesses)
    return engine


def load(seed: int) -> tuple[list[tuple[int, Submit]], dict[str, int]]:
    """Requests by the step in which they arrive, and aborts. Many prompts repeat themselves, or begin alike."""
    rng = random.Random(seed)
    arrivals, aborts = [], {}
    for number in range(24):
        sampling = SamplingParams(
            max_tokens=rng.randrange(1, 60),
            min_tokens=rng.choice((0, 0, 3)),
            temperature=rng.choice((0.0, 0.0, 0.9)),
            top_p=rng.choice((1.0, 0.8)),
            presence_penalty=rng.choice((0.0, 0.0, 0.0, 0.7)),
            logit_bias=rng.choice(({}, {}, {7: 3.0})),
            stop_token_ids=tuple(rng.sample(range(6, 512), 4)),
            logprobs=rng.choice((None, None, 2)),
            seed=number,
        )
        words = [rng.randrange(6, 512) for _ in range(rng.randrange(1, 9))]
        prompt = rng.choice((words * rng.randrange(1, 12), list(range(6, 6 + rng.randrange(1, 90)))))
        arrivals.append((2 * number, Submit(request_id=str(number), prompt_token_ids=prompt, sampling=sampling)))
        if rng.random() < 0.2:
            aborts[str(number)] = 2 * number + rng.randrange(1, 12)
    return arrivals, aborts


def answers(engine: Engine, seed: int) -> dict[str, list[TokenOutput]]:
    """What all requests are told that are not aborted."""
    arrivals, aborts = load(seed)
    found: dict[str, list[TokenOutput]] = {submit.request_id: [] for _, submit in arrivals}
    step = 0
    while arrivals or not engine.idle:
        while arrivals and arrivals[0][0] <= step:
            assert engine.submit(arrivals.pop(0)[1]) is None
        for name in [name for name, at in aborts.items() if at == step]:
            engine.abort(name)
        for output in engine.step():
            assert output.error is None
            found[output.request_id].append(output)
        engine.scheduler.check_books()
        step += 1
    assert engine.scheduler.cache.usage == 0
    return {name: outputs for name, outputs in found.items() if name not in aborts}


def told(found: dict[str, list[TokenOutput]]) -> dict[str, Any]:
    """The tokens, the end, and which tokens had logprobs."""
    return {
        name: (
            [token for output in outputs for token in output.token_ids],
            [scored.token_id for output in outputs for scored in output.logprobs],
            outputs[-1].finish_reason,
            outputs[-1].stop_token_id,
        )
        for name, outputs in found.items()
    }


def tokens(found: dict[str, list[TokenOutput]]) -> dict[str, list[int]]:
    return {name: [token for output in outputs for token in output.token_ids] for name, outputs in found.items()}


@pytest.mark.parametrize(
    ("seed", "crowded", "overlaps"), [(0, False, False), (2, True, False), (4, True, True), (5, False, True)]
)
def test_the_answers_are_those_without_drafts(folder, seed, crowded, overlaps):
    """Greedy and sampled, with stops, limits and aborts among accepted drafts. Where it is crowded, requests with
    drafts are preempted."""
    cache = {"block_size": 4, "num_blocks": 64} if crowded else {}
    expected = answers(engine_of(folder, **cache), seed)
    engine = drafting(folder, tokens(expected), **cache)
    engine.overlaps = overlaps
    assert told(answers(engine, seed)) == told(expected)
    drafts = engine.scheduler.drafts
    assert drafts is not None
    assert drafts.num_drafted > drafts.num_accepted > 100
    assert bool(engine.scheduler.num_preemptions) == crowded


def test_n_grams_of_answers_that_repeat_themselves_are_accepted(folder):
    asked = {str(number): [9, 8, 7, number] for number in range(6, 10)}
    expected, engine = generate(engine_of(folder), asked, logit_bias={7: 100.0}), drafting(folder)
    assert tokens(generate(engine, asked, logit_bias={7: 100.0})) == tokens(expected)
    drafts = engine.scheduler.drafts
    assert drafts is not None
    assert drafts.num_accepted > 40
    assert sum(engine.steps.values()) < 64


def test_what_was_drafted_and_rejected_is_found_by_nobody(folder):
    """The next turn finds as much of the cache as without drafts, and is answered alike."""
    prompt = list(range(6, 40))
    plain = engine_of(folder, block_size=8)
    told = tokens(generate(plain, {"r": prompt}, max_tokens=30))["r"]
    engine = drafting(folder, {"r": told}, block_size=8)
    generate(engine, {"r": prompt}, max_tokens=30)
    for turn in (prompt + told + [7], prompt + told[:-1] + [told[-1] ^ 1, 7], prompt + told[:9] + [told[9] ^ 1] * 9):
        (of_plain, *_), (of_drafts, *_) = (
            generate(each, {"next": turn}, max_tokens=1)["next"] for each in (plain, engine)
        )
        assert of_drafts.num_cached_tokens == of_plain.num_cached_tokens >= 32
        assert of_drafts.token_ids == of_plain.token_ids


def test_ranks_draft_alike(tmp_path):
    folder = write_checkpoint(tmp_path / "model", "llama", seed=2)
    expected = tokens(answers(engine_of(folder), 1))

    def run(group: ThreadGroup) -> tuple[dict[str, list[int]], int]:
        engine = drafting(folder, expected, group)
        found = tokens(answers(engine, 1))
        assert engine.scheduler.drafts is not None
        return found, engine.scheduler.drafts.num_accepted

    (first, accepted), (second, others) = together(2, run)
    assert first == second == expected
    assert accepted == others > 0


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_tokens_are_distributed_as_without_drafts(tmp_path, family):
    """Three in a row, of other seeds than without: a chi-square of two samples, over what is told more than a few
    times."""
    folder = write_checkpoint(tmp_path / "model", family, seed=2)

    def sampled(engine: Engine, first: int) -> Counter[tuple[int, ...]]:
        for seed in range(first, first + 2000):
            sampling = SamplingParams(seed=seed, temperature=1.5, top_k=4, max_tokens=3, ignore_eos=True)
            engine.submit(Submit(request_id=str(seed), prompt_token_ids=[9, 8, 7], sampling=sampling))
        told: dict[str, tuple[int, ...]] = {}
        while not engine.idle:
            for output in engine.step():
                told[output.request_id] = told.get(output.request_id, ()) + output.token_ids
        return Counter(told.values())

    limits = {"max_num_seqs": 64, "max_num_batched_tokens": 256}
    plain = sampled(engine_of(folder, **limits), 0)
    likely = list(plain.most_common(1)[0][0])
    engine = drafting(folder, {str(seed): likely for seed in range(2000, 4000)}, **limits)
    drafted = sampled(engine, 2000)
    assert engine.scheduler.drafts.num_accepted > 100
    bins = [key for key in plain.keys() | drafted.keys() if plain[key] + drafted[key] > 10]
    statistic = sum((plain[key] - drafted[key]) ** 2 / (plain[key] + drafted[key]) for key in bins)
    freedom = len(bins) - 1
    assert freedom > 30
    # One in a thousand exceeds this (Wilson and Hilferty, 1931).
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3


def test_the_rest_of_a_step_comes_first():
    """Drafts take what decodes and prefills leave of the budget, of the rows of logits, and of the free blocks but one
    for each request that runs."""
    scheduler = scheduler_of({name: list(range(100, 140)) for name in "ab"}, num_blocks=12, budget=16, most_rows=7)
    for name in "ab":
        scheduler.add(Request(name, [ord(name)] * 6, SamplingParams(max_tokens=30), seed=0))
    assert shapes(advance(scheduler)) == [("a", 6, 0), ("b", 6, 0)]
    assert shapes(advance(scheduler)) == [("a", 5, 4), ("b", 2, 1)]
    scheduler.add(Request("c", [1] * 14, SamplingParams(max_tokens=30), seed=0))
    assert shapes(advance(scheduler)) == [("a", 1, 0), ("b", 1, 0), ("c", 14, 0)]


def test_no_draft_goes_beyond_the_answers_end():
    scheduler = scheduler_of({"a": list(range(100, 140)), "b": list(range(100, 140))}, context=20)
    scheduler.add(Request("a", [1] * 4, SamplingParams(max_tokens=3), seed=0))
    scheduler.add(Request("b", [2] * 16, SamplingParams(max_tokens=30), seed=0))
    assert shapes(advance(scheduler)) == [("a", 4, 0), ("b", 16, 0)]
    assert shapes(advance(scheduler)) == [("a", 2, 1), ("b", 3, 2)]


def test_drafts_of_a_full_cache_preempt_nobody():
    scheduler = scheduler_of({name: list(range(100, 140)) for name in "ab"}, num_blocks=7, context=24)
    for name in "ab":
        scheduler.add(Request(name, [ord(name)] * 11, SamplingParams(max_tokens=30), seed=0))
    assert shapes(advance(scheduler)) == [("a", 11, 0), ("b", 11, 0)]
    assert shapes(advance(scheduler)) == [("a", 1, 0), ("b", 1, 0)]
    assert scheduler.num_preemptions == 0


@pytest.mark.parametrize(
    "changes",
    [{"presence_penalty": 0.5}, {"min_tokens": 9}, {"repetition_penalty": 1.1}],
    ids=lambda changes: next(iter(changes)),
)
def test_where_a_token_changes_how_the_next_is_sampled_there_are_none(changes):
    scheduler = scheduler_of({"a": list(range(100, 140))})
    scheduler.add(Request("a", [1] * 4, SamplingParams(max_tokens=30, **changes), seed=0))
    advance(scheduler)
    assert not scheduler.awaits_tokens
    assert shapes(advance(scheduler)) == [("a", 1, 0)]


def scheduler_of(
    guesses: dict[str, list[int]], num_blocks=40, block_size=4, budget=64, context=48, most_rows=64
) -> Scheduler:
    cache = CacheManager(BlockPool(max(num_blocks, context // block_size), block_size))
    return Scheduler(Limits(8, budget, context), cache, Drafts(Guesser(guesses, wrong=99), DRAFTS, most_rows))


def advance(scheduler: Scheduler) -> list[Scheduled]:
    """One step, in which each request is told the next of 100, 101, ..."""
    step = scheduler.schedule()
    scheduler.launched(step)
    scheduler.complete(step)
    for item in step:
        request = item.request
        if not item.samples:
            continue
        ended = None
        for _ in range(1 + len(item.drafts)):
            ended = request.accept(100 + len(request.output_token_ids), frozenset(), scheduler.limits.max_model_len)
        if item.drafts:
            scheduler.keep(item, len(item.drafts))
        if ended:
            scheduler.finish(request)
    scheduler.check_books()
    return step


def shapes(step: list[Scheduled]) -> list[tuple[str, int, int]]:
    return [(item.request.request_id, item.num_tokens, len(item.drafts)) for item in step]


@pytest.mark.parametrize(
    ("sampled", "sound", "count"),
    [
        ([1, 2, 3], [True, True, True], 3),
        ([1, 5, 3], [True, True, True], 2),
        ([7, 2, 3], [True, True, True], 1),
        ([1, 2, 3], [True, True, False], 2),
        ([1, None, 3], [True, True, True], 1),
        ([None, 2, 3], [True, True, True], 1),
    ],
)
def test_a_run_ends_with_the_first_token_that_was_not_drafted(sampled, sound, count):
    assert accepted_run((1, 2), sampled, sound) == count


@pytest.mark.parametrize(
    ("told", "guessed"),
    [
        ([5, 6, 7, 8, 1, 5, 6], (7, 8, 1, 5)),
        ([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], (9, 2, 3, 8)),  # the longest that is found, not the last
        ([2, 3, 9, 2, 3, 8, 2, 3], (8, 2, 3, 8)),  # of equally long ones the last, and on as it repeats itself
        ([4, 4, 4], (4, 4, 4, 4)),
        ([55296, 60000, 7, 55296, 60000], (7, 55296, 60000, 7)),  # no character, but a code of one
        ([1, 2, 3, 4], ()),
        ([1], ()),
    ],
)
def test_an_n_gram_is_what_followed_the_last_time(told, guessed):
    request = Request("r", told[:1], SamplingParams(), seed=0)
    proposer = NgramProposer()
    proposer.propose(request, 4)
    request.output_token_ids = told[1:]
    assert proposer.propose(request, 4) == guessed
    assert proposer.propose(request, 2) == guessed[:2]


def test_drafts_that_gain_too_little_are_left_out_for_a_while():
    acceptance = Acceptance(window=10, pause=3)
    for gained in (1, 1, *[0] * 8):
        acceptance.note(gained)
    assert acceptance.is_on, LEAST_GAIN
    for gained in (1, *[0] * 9):
        assert acceptance.is_on
        acceptance.note(gained)
    for _ in range(3):
        assert not acceptance.is_on
        acceptance.leave_out()
    assert acceptance.is_on


@pytest.mark.parametrize("overlaps", [False, True], ids=["plain", "overlapping"])
def test_a_request_whose_drafts_are_wrong_gets_no_more(tmp_path, overlaps):
    """The next step is laid out before the last one is read again, and the answer stays as it is."""
    folder = write_checkpoint(tmp_path / "model", "llama", seed=2)
    expected = tokens(generate(engine_of(folder), {"r": [9, 8, 7]}))["r"]
    engine = drafting(folder, {"r": [token ^ 1 for token in expected]})
    engine.overlaps = overlaps
    engine.scheduler.drafts._proposer = Guesser({"r": [token ^ 2 for token in expected]}, wrong=99)
    found = generate(engine, {"r": [9, 8, 7]}, max_tokens=64)
    assert tokens(found)["r"] == expected
    drafts = engine.scheduler.drafts
    assert (drafts.num_drafted, drafts.num_accepted) == (32 * DRAFTS, 0)
    assert sum(engine.steps.values()) in (64, 65)
