"""Biases on single logits: what they change, and what they leave as it was."""

from __future__ import annotations

import re
from typing import Any

import pytest
from llguidance import LLMatcher

from appliance.core_protocol import MAX_BIASES, FinishReason, SamplingParams, Submit
from tests.parity.conftest import generate, make_engine, tokens
from tests.tiny import write_checkpoint

PROMPT = {"r": [7, 8, 9]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("biased") / "model", "qwen3")


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_token_may_be_wanted_above_all_or_not_at_all(folder, temperature):
    """Greedily or at random; and no logprob is told otherwise than without it."""
    wanted = generate(make_engine(folder), PROMPT, max_tokens=8, temperature=temperature, logit_bias={77: 100.0})["r"]
    assert tokens(wanted) == [77] * 8
    free = tokens(generate(make_engine(folder), PROMPT, max_tokens=30, temperature=0.0)["r"])
    unwanted = dict.fromkeys(set(free), -100.0)
    others = generate(make_engine(folder), PROMPT, max_tokens=30, temperature=temperature, logit_bias=unwanted)["r"]
    assert not set(tokens(others)) & unwanted.keys()


def test_what_runs_beside_it_is_sampled_as_if_alone(folder):
    """And so is the biased request, with penalties and without."""
    asked: dict[str, dict[str, Any]] = {
        "plain": {},
        "biased": {"logit_bias": {77: 2.0, 100: -3.0}},
        "both": {"logit_bias": {77: 2.0}, "presence_penalty": 1.0},
        "random": {"logit_bias": {5: 1.0}, "temperature": 0.9, "seed": 4},
    }
    alone = {
        name: tokens(generate(make_engine(folder), {name: [7, 8, 9]}, max_tokens=20, **params)[name])
        for name, params in asked.items()
    }
    engine = make_engine(folder)
    for name, params in asked.items():
        values: dict[str, Any] = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, **params}
        sampling = SamplingParams(**values)
        assert engine.submit(Submit(request_id=name, prompt_token_ids=[7, 8, 9], sampling=sampling)) is None
    together: dict[str, list[int]] = {name: [] for name in asked}
    while not engine.idle:
        for output in engine.step():
            together[output.request_id] += output.token_ids
    assert together == alone


def test_a_grammar_has_the_last_word(folder):
    """Of what it allows, the bias chooses."""
    from appliance.checkpoint.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder)
    five, other = tokenizer.encode("5", add_special_tokens=False), tokenizer.encode("x", add_special_tokens=False)
    biases = {five[-1]: 50.0, other[-1]: 100.0}
    grammar = LLMatcher.grammar_from_regex(r"[0-9]{4}")
    outputs = generate(make_engine(folder), PROMPT, max_tokens=20, grammar=grammar, logit_bias=biases)["r"]
    assert re.fullmatch("5{4}", tokenizer.decode(tokens(outputs)))
    assert outputs[-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    "biases",
    [
        {512: 1.0},
        {-1: 1.0},
        {5: 100.5},
        {5: float("nan")},
        {5: float("inf")},
        dict.fromkeys(range(MAX_BIASES + 1), 1.0),
    ],
)
def test_the_engine_checks_biases_itself(folder, biases):
    """Whatever the front door has let through."""
    sampling = SamplingParams(max_tokens=4, logit_bias=biases)
    refused = make_engine(folder).submit(Submit(request_id="r", prompt_token_ids=[7], sampling=sampling))
    assert refused is not None
    assert refused.finish_reason is FinishReason.ERROR
