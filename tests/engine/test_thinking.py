"""Answers whose reasoning is bounded: when it is ended, whatever else runs, and whoever ends it."""

from __future__ import annotations

import json
import random

import pytest
from llguidance import LLMatcher

from appliance.checkpoint.grammar import after_thought
from appliance.checkpoint.tokenizer import Tokenizer
from appliance.core_protocol import FinishReason, SamplingParams, Submit, TokenOutput
from appliance.engine.engine import Engine
from appliance.engine.thinking import Thinking
from appliance.serving.parsers.plain import PlainParser
from appliance.serving.parsers.registry import REASONING
from appliance.thinking_budget import ThinkingBudget, ThinkingSection
from tests.parity.conftest import generate, make_engine, tokens
from tests.tiny import write_checkpoint

END = "</think>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model") / "model", "llama", seed=2)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def end(tokenizer):
    return tokenizer.encode(END, add_special_tokens=False)


def budget_of(count: int, end: list[int], **changes) -> ThinkingBudget:
    section = ThinkingSection(begin="<think>", ends=(END,), forced=tuple(end))
    return ThinkingBudget(tokens=count, sections=(section,), **{"opened": True, **changes})


def engine_of(folder, **changes) -> Engine:
    limits = {"max_num_seqs": 7, "max_model_len": 256, "num_blocks": 60, "max_num_batched_tokens": 64}
    return make_engine(folder, **(limits | changes))


def ended_at(found: list[int], end: list[int]) -> int:
    """How many tokens came before the marker."""
    return next(at for at in range(len(found)) if found[at : at + len(end)] == end)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_reasoning_ends_when_its_tokens_are_used_up(folder, end, count, overlaps):
    """A character may have to be completed first. What came before is what would have come anyway."""
    prompt = {"r": [7, 8, 9]}
    engine = engine_of(folder)
    engine.overlaps = overlaps
    free = tokens(generate(engine_of(folder), prompt, max_tokens=30)["r"])
    bound = tokens(generate(engine, prompt, max_tokens=30, thinking=budget_of(count, end))["r"])
    at = ended_at(bound, end)
    assert count <= at <= count + 3
    assert bound[:at] == free[:at]
    assert len(bound) == 30


def test_the_answer_ends_at_max_tokens_all_the_same(folder, end):
    outputs = generate(engine_of(folder), {"r": [7]}, max_tokens=6, thinking=budget_of(4, end))["r"]
    assert len(tokens(outputs)) == 6
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_reasoning_that_never_begins_takes_nothing_away(folder, end):
    prompt = {"r": [7, 8, 9]}
    free = tokens(generate(engine_of(folder), prompt, max_tokens=30)["r"])
    bound = generate(engine_of(folder), prompt, max_tokens=30, thinking=budget_of(0, end, opened=False))["r"]
    assert tokens(bound) == free


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_answer_behind_it_keeps_to_its_grammar(folder, tokenizer, end, temperature):
    schema = LLMatcher.grammar_from_json_schema({"type": "integer", "minimum": 0, "maximum": 999})
    grammar = after_thought(schema, [(None, END)], {})
    for seed in range(5):
        sampled = {"temperature": temperature, "seed": seed, "max_tokens": 60}
        outputs = generate(engine_of(folder), {"r": [7]}, grammar=grammar, thinking=budget_of(9, end), **sampled)["r"]
        assert outputs[-1].finish_reason is FinishReason.STOP, outputs[-1]
        answer = tokenizer.decode(tokens(outputs)).partition(END)[2]
        assert 0 <= json.loads(answer) <= 999
        assert ended_at(tokens(outputs), end) <= 12


def answers(engine: Engine, end: list[int], seed: int) -> dict[str, list[TokenOutput]]:
    """Of requests that come at random, some of which may reason so long, and some of which keep to a grammar."""
    rng = random.Random(seed)
    found: dict[str, list[TokenOutput]] = {}
    grammar = after_thought(LLMatcher.grammar_from_regex("[0-9]{2,5}"), [(None, END)], {})
    engine._grammars.compile(grammar).result()  # before, so that each run admits in the same order
    for number in range(100):
        if number < 50 and rng.random() < 0.5:
            count = rng.choice((0, 3, 10, None))
            sampling = SamplingParams(
                max_tokens=rng.randrange(8, 40),
                temperature=rng.choice((0.0, 1.0)),
                presence_penalty=rng.choice((0.0, 0.0, 0.7)),
                seed=number,
                ignore_eos=True,
                grammar=rng.choice((grammar, None)),
                thinking=None if count is None else budget_of(count, end),
            )
            prompt = [rng.randrange(6, 512) for _ in range(rng.randrange(1, 90))]
            engine.submit(Submit(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
            for _, prepared in engine._compiling.values():
                prepared.result()
            found[str(number)] = []
        for output in engine.step():
            found[output.request_id].append(output)
        engine.scheduler.check_books()
    while not engine.idle:
        for output in engine.step():
            found[output.request_id].append(output)
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("crowded", [False, True], ids=["roomy", "crowded"])
def test_overlapping_steps_end_it_where_plain_ones_do(folder, end, seed, crowded):
    cache = {"block_size": 4, "num_blocks": 64} if crowded else {}
    expected = answers(engine_of(folder, **cache), end, seed)
    overlapping = engine_of(folder, **cache)
    overlapping.overlaps = True
    found = answers(overlapping, end, seed)
    assert {name: tokens(outputs) for name, outputs in found.items()} == {
        name: tokens(outputs) for name, outputs in expected.items()
    }
    assert bool(overlapping.scheduler.num_preemptions) == crowded
    assert not [outputs[-1].error for outputs in found.values() if outputs[-1].error]


def of_bytes(budget: ThinkingBudget) -> Thinking:
    """Where each byte is a token."""
    return Thinking(budget, bytes, 8)


def budget_in(name: str, count: int, *, opened: bool = False) -> ThinkingBudget:
    """Of a format, with a token for each byte."""
    format_ = REASONING[name]
    sections = tuple(
        ThinkingSection(begin=begin, ends=ends, forced=tuple(closing.encode()), forced_again=tuple(final.encode()))
        for begin, ends, closing, final in format_.sections
    )
    return ThinkingBudget(
        tokens=count, sections=sections, opened=opened, recurs=format_.interleaved, stops=format_.calls_within
    )


def told(thinking: Thinking, text: str) -> str:
    """What is forced, if anything is, once the model has written `text`."""
    for byte in text.encode():
        assert thinking.forced is None
        thinking.accept(byte)
    forced = []
    while (token := thinking.forced) is not None:
        forced.append(token)
        thinking.accept(token)
    return bytes(forced).decode()


@pytest.mark.parametrize(
    ("name", "count", "text", "end"),
    [
        ("think", 3, "<think>abc", "</think>"),
        ("think", 3, "\n\n<think>abc", "</think>"),
        ("think", 5, "<think>ab\u20ac", "</think>"),
        ("think", 4, "<think>ab\u20ac", "</think>"),
        ("think", 9, "<think>abc</thin", "</think>"),
        ("think", 9, "<think>a</think><think>abc", ""),
        ("think", 3, "Well, <think>abcd", ""),
        ("granite", 3, "Here's my thought process:abc", "Here's my response:"),
        ("mistral", 3, "[THINK]abc", "[/THINK]"),
        ("gemma4", 3, "<|channel>thought\nabc", "<channel|>"),
        ("kimi", 3, "◁think▷abc", "◁/think▷"),
        ("minimax-m2", 11, "<think>a</think>Well. <think>bc", "</think>"),
        ("minimax-m2", 3, "<minimax:tool_call><think>abcd", ""),
        ("gpt-oss", 3, "<|channel|>analysis<|message|>abc", "<|end|>"),
        ("dsml", 30, "<think>ab<｜DSML｜tool_calls>" + "abcd" * 9, ""),
    ],
)
def test_each_format_is_ended_by_its_own_marker(name, count, text, end):
    """And only reasoning is, up to a marker or a call that ends it."""
    assert told(of_bytes(budget_in(name, count)), text) == end


def test_a_character_is_completed_first():
    thinking = of_bytes(budget_in("think", 2, opened=True))
    for byte in b"ab"[:1] + "\u20ac".encode()[:2]:
        thinking.accept(byte)
        assert thinking.forced is None
    assert thinking.may_force(0)
    thinking.accept("\u20ac".encode()[2])
    assert thinking.forced == ord("<")


def test_characters_that_are_never_completed_do_not_prolong_it():
    thinking = of_bytes(budget_in("think", 2, opened=True))
    begins = "\u20ac".encode()[0]
    for _ in range(2 + 3):
        assert thinking.forced is None
        thinking.accept(begins)
    assert thinking.forced == ord("<")


def test_reasoning_that_begins_again_is_ended_for_good():
    """As the model might go on for ever to begin and to be ended."""
    thinking = of_bytes(budget_in("gpt-oss", 2))
    head = "<|start|>assistant<|channel|>analysis<|message|>"
    assert told(thinking, "<|channel|>analysis<|message|>ab") == "<|end|>"
    assert told(thinking, head) == "<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", sorted(set(REASONING) - {"gpt-oss"}))
def test_engine_and_front_door_read_alike(name, opened):
    """What is reasoning to the one is to the other, at every token of texts made of markers and their parts."""
    format_, rng = REASONING[name], random.Random(f"{name}{opened}")
    texts = [text for begin, ends, *_ in format_.sections for text in (begin, *ends)]
    parts = [*texts, *(text[: len(text) // 2] for text in texts), "a", " ", "\n", "b c", "\u20ac"]
    for _ in range(300):
        thinking = of_bytes(budget_in(name, 10**6, opened=opened))
        parser = format_.parser(PlainParser(), opened=opened)
        for part in rng.choices(parts, k=6):
            parser.push(part)
            for byte in part.encode():
                thinking.accept(byte)
        probe = parser.push("§~")  # no marker has these
        reasons = "~" in probe.reasoning
        assert reasons or "~" in probe.content
        for byte in "§~".encode():
            thinking.accept(byte)
        assert (thinking._section is not None) == reasons
