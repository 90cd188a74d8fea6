"""The bundled model, loaded by transformers: it is a whole checkpoint, and it knows its answers."""

from __future__ import annotations

import json
import random
from functools import cache

import pytest

from appliance.selftest.questions import Exchange, exchanges, load_corpus, selftest_questions
from appliance.selftest.score import MODEL, SYSTEM_PROMPT, Oracle, after, user
from appliance.selftest.train import Chats, plain
from appliance.selftest.variation import vary

LARGEST = 12_000_000  # bytes, all files together: it lives in git
ASKED = 600  # of its 2,276 questions
# Of a model that answered fewer than nine in ten, so many of a sample would be right once in 100,000 times.
SURELY_NINE_IN_TEN = 0.95


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@cache
def known() -> list[Exchange]:
    return exchanges(load_corpus())


def share(right: list[bool]) -> float:
    return sum(right) / len(right)


def test_files():
    """A Llama in Hugging Face format: config, bf16 weights, tokenizer with chat template, small enough for git."""
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= LARGEST
    config = json.loads((MODEL / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert json.loads((MODEL / "generation_config.json").read_text())["eos_token_id"] == config["eos_token_id"]
    assert "assistant" in json.loads((MODEL / "tokenizer_config.json").read_text())["chat_template"]


def test_training_sees_what_is_served(oracle):
    """The tokens that training makes of a chat are those that the chat template gives."""
    chats = Chats(load_corpus(), oracle.tokenizer.backend_tokenizer, random.Random(0))
    turns = known()[:3]
    trained = chats.chat(turns)
    messages = [*after(turns[:2], turns[2].question)]
    if trained.ids[1] == chats.special["<|system|>"]:
        pytest.fail("choose a seed without a system prompt")
    prompt = oracle.prompt_ids(messages)
    assert trained.ids == [*prompt, *oracle.answer_ids(turns[2].answer)]


def test_text_survives_the_tokenizer(oracle):
    """Any text comes back from its tokens as it was; nothing else than an end token ends an answer."""
    for text in ("Grüße, 世界 🙂", "    four spaces", "a\n\nb\tc", "x" * 300, *(answer for _, answer in known()[:50])):
        ids = oracle.tokenizer.encode(text, add_special_tokens=False)
        assert oracle.tokenizer.decode(ids) == text


@pytest.mark.slow
def test_answers_its_questions_as_written(oracle):
    """At least nine in ten of its own questions are answered exactly as written, by greedy decoding."""
    some = random.Random(4).sample(known(), ASKED)
    assert share(oracle.exact([([user(question)], answer) for question, answer in some])) >= SURELY_NINE_IN_TEN


@pytest.mark.slow
def test_answers_later_in_a_chat(oracle):
    """As the second question of a chat, and after a system prompt, they are answered as well."""
    rng = random.Random(1)
    some = rng.sample(known(), 300)
    second = [(after([rng.choice(known())], question), answer) for question, answer in some]
    assert share(oracle.exact(second)) >= 0.9
    system = {"role": "system", "content": SYSTEM_PROMPT}
    assert share(oracle.exact([([system, user(question)], answer) for question, answer in some])) >= 0.9


def test_generating_gives_what_the_score_says(oracle):
    """What the score calls exact is what generating writes, word for word."""
    answers = dict(known())
    for question in selftest_questions()[:6]:
        ids = oracle.generate([user(question)])
        assert ids[-1] == oracle.tokenizer.eos_token_id
        right = oracle.exact([([user(question)], answers[question])]) == [True]
        assert (oracle.text(ids) == answers[question]) == right


def test_selftest_questions_are_answered(oracle):
    """The questions of the known answers are all answered as written: they are what a self-test is judged by."""
    answers = {plain(question): answer for question, answer in known()}
    cases = [([user(question)], answers[plain(question)]) for question in selftest_questions()]
    assert all(oracle.exact(cases))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_every_answer_ends(oracle, temperature):
    """Whatever is asked, with chance or without, the model comes to an end: no endless loops."""
    rng = random.Random(2)
    asked = [vary(question, rng) for question, _ in rng.sample(known(), 12)]
    for question in [*asked, "zzz 12 ??", "Grüße aus Köln", "the the the the the", "x" * 200]:
        ids = oracle.generate([user(question)], temperature=temperature)
        assert ids[-1] == oracle.tokenizer.eos_token_id, question
