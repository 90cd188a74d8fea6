"""Answers that keep to a grammar, whatever else runs in their batch, and whenever their tokens are read."""

from __future__ import annotations

import json
import random
import re

import pytest
from llguidance import LLMatcher

from appliance.checkpoint.call_grammar import FreeText, calls_in_text
from appliance.checkpoint.tokenizer import Tokenizer
from appliance.core_protocol import FinishReason, SamplingParams, Submit, TokenOutput
from appliance.engine import grammar as engine_grammar
from appliance.engine.engine import Engine
from appliance.engine.grammar import KEPT, Grammars
from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.registry import FORMATS
from appliance.thinking_budget import ThinkingBudget, ThinkingSection
from tests.parity.conftest import generate, make_engine, tokens
from tests.tiny import write_checkpoint

NUMBERS = r"[0-9]{2,5}(,[0-9]{2,5}){1,4}"
DATE = r"20[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model") / "model", "llama", seed=2)


@pytest.fixture(scope="module")
def text(folder):
    tokenizer = Tokenizer.load(folder)
    return lambda outputs: tokenizer.decode(tokens(outputs))


def engine_of(folder, **changes) -> Engine:
    limits = {"max_num_seqs": 7, "max_model_len": 256, "num_blocks": 60, "max_num_batched_tokens": 64}
    return make_engine(folder, **(limits | changes))


def regex(pattern: str) -> str:
    return LLMatcher.grammar_from_regex(pattern)


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_an_answer_matches_its_pattern_and_ends_with_it(folder, text, temperature):
    outputs = generate(engine_of(folder), {"r": [7, 8, 9]}, grammar=regex(DATE), temperature=temperature)["r"]
    assert re.fullmatch(DATE, text(outputs))
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert outputs[-1].stop_token_id is None  # the last token is part of the answer


def test_json_is_valid_and_has_what_its_schema_wants(folder, text):
    grammar = LLMatcher.grammar_from_json_schema(PERSON)
    for seed in range(5):
        found = generate(engine_of(folder), {"r": [7, 8, 9]}, grammar=grammar, temperature=1.0, seed=seed)
        person = json.loads(text(found["r"]))
        assert set(person) == {"name", "age"}
        assert 0 <= person["age"] <= 99


def test_logprobs_are_the_models_own(folder):
    """A grammar changes what is sampled, not how likely the model finds it."""
    (free,) = generate(engine_of(folder), {"r": [7, 8, 9]}, max_tokens=1, logprobs=512)["r"]
    (bound,) = generate(engine_of(folder), {"r": [7, 8, 9]}, max_tokens=1, logprobs=512, grammar=regex("[a-c]+"))["r"]
    assert dict(free.logprobs[0].top) == pytest.approx(dict(bound.logprobs[0].top))
    assert bound.logprobs[0].logprob == pytest.approx(dict(free.logprobs[0].top)[bound.token_ids[0]])


def test_what_runs_beside_it_is_sampled_as_if_alone(folder):
    prompts = {"r": [7, 8, 9, 10, 11]}
    alone = tokens(generate(engine_of(folder), prompts, max_tokens=20)["r"])
    engine = engine_of(folder)
    for number in range(3):
        sampling = SamplingParams(grammar=regex(NUMBERS), temperature=1.0, seed=number, max_tokens=30)
        engine.submit(Submit(request_id=str(number), prompt_token_ids=[20 + number], sampling=sampling))
    engine.submit(
        Submit(
            request_id="r",
            prompt_token_ids=prompts["r"],
            sampling=SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
        )
    )
    found = run(engine)
    assert tokens(found["r"]) == alone


def run(engine: Engine) -> dict[str, list[TokenOutput]]:
    found: dict[str, list[TokenOutput]] = {}
    while not engine.idle:
        for output in engine.step():
            found.setdefault(output.request_id, []).append(output)
        engine.scheduler.check_books()
    return found


def answers(engine: Engine, seed: int) -> dict[str, list[TokenOutput]]:
    """Of requests that come and are aborted at random, some of them with a grammar."""
    rng, aborted = random.Random(seed), set()
    found: dict[str, list[TokenOutput]] = {}
    for pattern in (NUMBERS, DATE):  # compiled before, so that each run admits in the same order
        engine._grammars.compile(regex(pattern)).result()
    for number in range(100):
        if number < 50 and rng.random() < 0.5:
            pattern = rng.choice((NUMBERS, DATE, None))
            sampling = SamplingParams(
                max_tokens=rng.randrange(8, 40),
                temperature=rng.choice((0.0, 1.0)),
                presence_penalty=rng.choice((0.0, 0.0, 0.7)),
                seed=number,
                grammar=pattern and regex(pattern),
            )
            prompt = [rng.randrange(6, 512) for _ in range(rng.randrange(1, 90))]
            assert engine.submit(Submit(request_id=str(number), prompt_token_ids=prompt, sampling=sampling)) is None
            found[str(number)] = []
        if found and rng.random() < 0.05:
            aborted.add(name := rng.choice(sorted(found)))
            engine.abort(name)
        for output in engine.step():
            found[output.request_id].append(output)
        engine.scheduler.check_books()
    for name, outputs in run(engine).items():
        found[name] += outputs
    return {name: outputs for name, outputs in found.items() if name not in aborted}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("crowded", [False, True], ids=["roomy", "crowded"])
def test_overlapping_steps_sample_what_plain_ones_do(folder, text, seed, crowded):
    cache = {"block_size": 4, "num_blocks": 64} if crowded else {}
    expected = answers(engine_of(folder, **cache), seed)
    overlapping = engine_of(folder, **cache)
    overlapping.overlaps = True
    found = answers(overlapping, seed)
    assert {name: tokens(outputs) for name, outputs in found.items()} == {
        name: tokens(outputs) for name, outputs in expected.items()
    }
    assert bool(overlapping.scheduler.num_preemptions) == crowded
    whole = [text(outputs) for outputs in found.values() if outputs[-1].finish_reason is FinishReason.STOP]
    assert sum(bool(re.fullmatch(f"{NUMBERS}|{DATE}", each)) for each in whole) > 3


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_call_in_text_fits_its_schema(folder, text, temperature, overlaps):
    """The model opens it: here, since the marker is put into its mouth."""
    tools = Tool("look", parameters=PERSON, strict=True), Tool("listen")
    shapes = FORMATS["hermes"].shapes
    assert shapes is not None
    grammar = calls_in_text(FreeText(shapes(tools), {}))
    opening = Tokenizer.load(folder).encode('<tool_call>{"name": "look"', add_special_tokens=False)
    section = ThinkingSection(begin="<begin>", ends=("<end>",), forced=tuple(opening))
    opens = ThinkingBudget(tokens=5, sections=(section,), opened=True)
    for seed in range(3):
        engine = engine_of(folder)
        engine.overlaps = overlaps
        sampled = {"temperature": temperature, "seed": seed, "max_tokens": 200}
        answer = text(generate(engine, {"r": [7, 8]}, grammar=grammar, thinking=opens, **sampled)["r"])
        before, _, call = answer.partition("<tool_call>")
        assert before
        person = json.loads(call.partition("</tool_call>")[0])["arguments"]
        assert set(person) == {"name", "age"}
        assert 0 <= person["age"] <= 99


def test_a_grammar_that_cannot_be_compiled_ends_its_request_alone(folder):
    engine = engine_of(folder)
    engine.submit(
        Submit(request_id="bad", prompt_token_ids=[7], sampling=SamplingParams(grammar=regex("(a"), max_tokens=5))
    )
    engine.submit(Submit(request_id="good", prompt_token_ids=[7], sampling=SamplingParams(max_tokens=5)))
    found = run(engine)
    assert [output.finish_reason for output in found["bad"]] == [FinishReason.ERROR]
    assert sum(len(output.token_ids) for output in found["good"]) >= 1


def test_a_grammar_that_passes_its_limits_later_ends_its_request(folder):
    """It is an error, and never taken for the end of the answer."""
    grammar = LLMatcher.grammar_from_lark('start: "x" a{1000}\na: b{1000}\nb: "x"{1000}')
    outputs = generate(engine_of(folder), {"r": [7]}, grammar=grammar, max_tokens=20)["r"]
    assert outputs[-1].finish_reason is FinishReason.ERROR
    assert outputs[-1].error


def test_a_grammar_whose_masks_take_long_ends_its_request_alone(folder, monkeypatch):
    """However small each is: others wait while they are computed."""
    monkeypatch.setattr(engine_grammar, "FREE_S", 0.0)
    monkeypatch.setattr(engine_grammar, "MOST_S", 0.0)
    engine = engine_of(folder)
    slow = SamplingParams(max_tokens=20, grammar=regex("[a-z]*"))
    engine.submit(Submit(request_id="slow", prompt_token_ids=[7, 8], sampling=slow))
    free = SamplingParams(max_tokens=20, ignore_eos=True)
    engine.submit(Submit(request_id="free", prompt_token_ids=[7, 8], sampling=free))
    found = run(engine)
    assert found["slow"][-1].finish_reason is FinishReason.ERROR
    assert found["slow"][-1].error
    assert len(tokens(found["free"])) == 20


def test_an_abort_while_it_is_compiled(folder):
    engine = engine_of(folder)
    grammar = LLMatcher.grammar_from_json_schema({"enum": [f"value {number}" for number in range(20_000)]})
    engine.submit(Submit(request_id="r", prompt_token_ids=[7], sampling=SamplingParams(grammar=grammar)))
    assert engine.num_waiting == 1
    engine.abort("r")
    assert engine.idle
    assert run(engine) == {}


def test_the_least_recently_used_are_dropped(folder):
    grammars = Grammars(folder, 512, (1,))
    first = grammars.compile(regex("a0"))
    for number in range(1, KEPT):
        grammars.compile(regex(f"a{number}"))
    assert grammars.compile(regex("a0")) is first
    grammars.compile(regex("b"))
    assert grammars.compile(regex("a0")) is first
    assert len(grammars._compiled) == KEPT


def test_min_tokens_never_leave_it_without_a_token(folder, text):
    """The answer is over when its grammar is, however few tokens that takes."""
    outputs = generate(engine_of(folder), {"r": [7]}, grammar=regex("ab|cde"), min_tokens=30, ignore_eos=False)["r"]
    assert text(outputs) in ("ab", "cde")
    assert outputs[-1].finish_reason is FinishReason.STOP
