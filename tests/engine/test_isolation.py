"""No request may influence another's tokens: not by its parameters, its NaNs, its aborts or its place in the batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from appliance.checkpoint.config import read_config
from appliance.core_protocol import FinishReason, SamplingParams, Submit, TokenOutput
from appliance.engine.engine import Engine
from appliance.engine.logprobs import LEAST_LOGPROB
from appliance.engine.request import Request
from tests.parity.conftest import make_engine, tokens
from tests.tiny import write_checkpoint

VOCAB = 512
EOS = 2
POISON = 511  # whose embedding is NaN
rng = random.Random(3)
PREFIX = [rng.randrange(6, 500) for _ in range(48)]  # three blocks
QUESTION = [*PREFIX, 7, 8, 9]


@pytest.fixture(scope="module", params=["qwen3", "deepseek_v3", "deepseek_v32"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a cache of keys and values, and of one of latents."""
    return write_checkpoint(tmp_path_factory.mktemp("isolation") / "model", request.param)


def poisoned(engine: Engine) -> Engine:
    """With a token whose keys and values are NaN, as a damaged row of the checkpoint would give."""
    engine._runner._model.embedding[POISON] = torch.nan  # type: ignore[attr-defined]
    return engine


def ask(engine: Engine, name: str, prompt: list[int], **sampling: Any) -> TokenOutput | None:
    values = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True} | sampling
    return engine.submit(Submit(request_id=name, prompt_token_ids=prompt, sampling=SamplingParams(**values)))


def run(engine: Engine) -> dict[str, list[TokenOutput]]:
    """Everything to its end."""
    outputs: dict[str, list[TokenOutput]] = {}
    while not engine.idle:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        engine.scheduler.check_books()
    return outputs


def alone(folder: Any, prompt: list[int]) -> list[int]:
    engine = make_engine(folder)
    assert ask(engine, "alone", prompt) is None
    return tokens(run(engine)["alone"])


def answered(engine: Engine, prompt: list[int]) -> list[int]:
    assert ask(engine, "again", prompt) is None
    return tokens(run(engine)["again"])


def cached_numbers(engine: Engine) -> bool:
    """Whether all of the cache holds numbers."""
    return all(t.float().isfinite().all() for cache in engine._caches.layers for t in cache.tensors)


HOSTILE = {
    "a tiny repetition penalty": {"repetition_penalty": 1e-40},
    "none at all": {"repetition_penalty": 0.0},
    "an infinite one": {"repetition_penalty": float("inf")},
    "a temperature that is no number": {"temperature": float("nan")},
    "an infinite presence penalty": {"presence_penalty": float("inf")},
    "stop tokens that cover the vocabulary": {"min_tokens": 5, "stop_token_ids": tuple(range(VOCAB))},
    "all but the end token, which counts too": {
        "min_tokens": 5, "stop_token_ids": tuple(t for t in range(VOCAB) if t != EOS),
    },
}  # fmt: skip


@pytest.mark.parametrize("sampling", HOSTILE.values(), ids=HOSTILE)
def test_parameters_that_leave_nothing_to_sample_are_refused(folder, sampling):
    """The core's own check, whatever the front door let through; the neighbour's prefix stays cached."""
    engine = make_engine(folder)
    assert ask(engine, "neighbour", QUESTION) is None
    first = engine.step()
    refused = ask(engine, "hostile", QUESTION, **sampling)
    assert refused is not None
    assert refused.finish_reason is FinishReason.ERROR
    assert next(iter(sampling)) in (refused.error or "")
    assert tokens([*first, *run(engine)["neighbour"]]) == alone(folder, QUESTION)


@pytest.mark.parametrize(
    "sampling",
    [
        {"repetition_penalty": 1e-40},
        {"repetition_penalty": 1e-40, "temperature": 1.0, "top_p": 0.5},
        {"min_tokens": 5, "stop_token_ids": tuple(range(VOCAB))},
    ],
    ids=["tiny penalty", "tiny penalty, sampled", "all forbidden"],
)
def test_even_past_the_checks_parameters_touch_nobody_elses_blocks(folder, sampling, monkeypatch):
    """The penalty that divides by almost nothing, and a row of which every token is forbidden: each ends or goes on by
    itself, and what it shares with a neighbour stays as it is, in use and in the prefix cache."""
    monkeypatch.setattr("appliance.engine.engine.sampling_refusal", lambda *_: None)
    expected = alone(folder, QUESTION)
    engine = make_engine(folder)
    assert ask(engine, "neighbour", QUESTION) is None
    for _ in range(3):
        engine.step()
    assert ask(engine, "hostile", [*PREFIX, 11], **sampling) is None
    outputs = run(engine)
    neighbour = engine.scheduler.get("neighbour")
    assert neighbour is None
    assert tokens(outputs["neighbour"]) == expected[-len(tokens(outputs["neighbour"])) :]
    assert answered(engine, QUESTION) == expected
    if "min_tokens" in sampling:
        assert outputs["hostile"][-1].finish_reason is FinishReason.ERROR
        assert "min_tokens" in (outputs["hostile"][-1].error or "")
    else:
        assert outputs["hostile"][-1].finish_reason is FinishReason.LENGTH


def test_a_request_of_nans_ends_alone_and_leaves_shared_blocks_to_their_other_users(folder):
    """It shares three blocks with a neighbour, and both are in the middle of their answers."""
    expected = alone(folder, QUESTION)
    engine = poisoned(make_engine(folder))
    assert ask(engine, "neighbour", QUESTION) is None
    first = engine.step()
    assert ask(engine, "poisoned", [*PREFIX, 5, POISON, 6]) is None
    outputs = run(engine)
    assert outputs["poisoned"][0].finish_reason is FinishReason.ERROR
    assert tokens([*first, *outputs["neighbour"]]) == expected
    assert cached_numbers(engine), "what held NaN is overwritten"
    assert answered(engine, QUESTION) == expected


def test_a_shared_block_that_really_holds_nan_ends_all_who_share_it_and_nothing_of_theirs_is_found_again(folder):
    """A block is damaged under two requests: both end, a third that has no part in it goes on, and the same prompt is
    computed anew."""
    expected = alone(folder, QUESTION)
    engine = make_engine(folder)
    other = [300, 301, 302]
    for name, prompt in (("first", QUESTION), ("bystander", other)):
        assert ask(engine, name, prompt) is None
    engine.step()
    assert ask(engine, "second", [*PREFIX, 11]) is None
    started = engine.step()
    sharer = engine.scheduler.get("second")
    assert sharer is not None
    assert sharer.num_cached_tokens == 48
    engine._caches.layers[1].tensors[-1][sharer.pages[0].ids[1]] = torch.nan
    # Only one of them is in the step that finds it.
    damaged = engine._end_damaged([sharer])
    assert {request.request_id for request in damaged} == {"first", "second"}
    engine.scheduler.check_books()
    assert cached_numbers(engine)
    outputs = run(engine)
    assert set(outputs) == {"bystander"}
    again = Request("again", QUESTION, SamplingParams(), seed=0)
    hit = engine.scheduler.cache.match_prefix(again)
    assert hit is not None
    assert hit.num_blocks == 0
    assert answered(engine, QUESTION) == expected
    assert started


def test_damage_is_found_where_it_is_and_both_end_with_an_error(folder):
    """The same through the steps alone."""
    engine = make_engine(folder)
    assert ask(engine, "first", QUESTION) is None
    engine.step()
    assert ask(engine, "second", [*PREFIX, 11]) is None
    engine.step()
    sharer = engine.scheduler.get("second")
    assert sharer is not None
    engine._caches.layers[0].tensors[0][sharer.pages[0].ids[0]] = torch.nan
    outputs = run(engine)
    assert {name: found[-1].finish_reason for name, found in outputs.items()} == {
        "first": FinishReason.ERROR,
        "second": FinishReason.ERROR,
    }


def test_a_prompt_that_is_damaged_ends_at_its_first_chunk_and_publishes_none_of_it(folder):
    """Not when it samples, steps later: until then another prompt could begin with its blocks."""
    engine = poisoned(make_engine(folder))
    assert ask(engine, "poisoned", [*PREFIX, POISON, *[9] * 150]) is None
    (output,) = engine.step()
    assert output.finish_reason is FinishReason.ERROR
    assert engine.idle
    assert answered(engine, QUESTION) == alone(folder, QUESTION)
    assert cached_numbers(engine)


def test_what_is_all_but_impossible_has_a_logprob_that_json_can_hold(folder):
    """Scores so far apart that the difference of two is infinite in float32."""
    engine = make_engine(folder)
    model: Any = engine._runner._model
    own = model.compute_logits

    def far_apart(hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = own(hidden)
        logits[:, 0], logits[:, 1] = 3e38, -3e38
        return logits

    model.compute_logits = far_apart
    assert ask(engine, "r", [5, 6], max_tokens=1, logprobs=VOCAB) is None
    (output,) = run(engine)["r"]
    found = dict(output.logprobs[0].top)
    assert found[0] == 0
    assert found[1] == LEAST_LOGPROB


@pytest.mark.parametrize("kv_cache_dtype", ["float32", "float8_e4m3fn"])
def test_what_lies_in_free_blocks_reaches_nobody(folder, kv_cache_dtype):
    """Requests of many lengths decode together in a cache that holds NaN wherever nobody has written yet."""
    if kv_cache_dtype == "float8_e4m3fn" and read_config(folder).latent_attention:
        pytest.skip("latents are kept in full")
    clean = make_engine(folder, kv_cache_dtype=kv_cache_dtype)
    dirty = make_engine(folder, kv_cache_dtype=kv_cache_dtype)
    for cache in dirty._caches.layers:
        for tensor in cache.tensors:
            tensor.copy_(torch.full(tensor.shape, torch.nan))
    answers = []
    for engine in (clean, dirty):
        rng.seed(3)
        for length in (1, 5, 16, 17, 40, 90):
            assert ask(engine, f"r{length}", [rng.randrange(6, 500) for _ in range(length)]) is None
        answers.append({name: tokens(outputs) for name, outputs in run(engine).items()})
    assert answers[1] == answers[0]


def test_requests_of_nans_that_come_and_go_among_healthy_ones_change_none_of_their_answers(folder):
    """Some are aborted before their prompt is computed, others end by themselves; blocks are scarce and change hands,
    and some requests are preempted."""
    healthy = {f"h{i}": [rng.randrange(6, 500) for _ in range(3 + 11 * i)] for i in range(6)}
    expected = {name: alone(folder, prompt) for name, prompt in healthy.items()}
    engine = poisoned(make_engine(folder, num_blocks=18, max_num_batched_tokens=16))
    outputs: dict[str, list[TokenOutput]] = {}
    waiting = list(healthy.items())
    for turn in range(2000):
        if waiting and turn % 5 == 0:
            assert ask(engine, *waiting.pop()) is None
        if turn % 4 == 1 and turn < 80:
            assert ask(engine, f"nan {turn}", [*[turn + 6] * 30, POISON, 9]) is None
        if turn % 8 == 3:
            engine.abort(f"nan {turn - 2}")
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        engine.scheduler.check_books()
        if not waiting and engine.idle:
            break
    assert {name: tokens(outputs[name]) for name in healthy} == expected
    assert engine.scheduler.num_preemptions
    assert any(name.startswith("nan") for name in outputs)


def test_a_prompt_of_another_salt_is_not_found_in_the_prefix_cache(folder):
    """So that nobody learns from a response time what others have asked; the answers are the same."""
    engine = make_engine(folder)
    cached, answers = {}, []
    for name, salt in (("open", ""), ("mine", "a"), ("mine again", "a"), ("theirs", "b"), ("open again", "")):
        sampling = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
        submit = Submit(request_id=name, prompt_token_ids=QUESTION, sampling=sampling, cache_salt=salt)
        assert engine.submit(submit) is None
        outputs = run(engine)[name]
        cached[name] = outputs[0].num_cached_tokens
        answers.append(tokens(outputs))
    assert cached == {"open": 0, "mine": 0, "mine again": 48, "theirs": 0, "open again": 48}
    assert all(answer == answers[0] for answer in answers)
