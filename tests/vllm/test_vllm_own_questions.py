"""What the appliance asks vLLM itself, and how it is left out of vLLM's figures."""

from __future__ import annotations

import itertools

import pytest

from appliance.vllm.figures import Figures, load_between
from appliance.vllm.own_questions import OwnQuestions


@pytest.fixture
def own() -> OwnQuestions:
    """After a self-test that counted a prompt of 5 tokens twice, and 4 tokens and then 1."""
    questions = OwnQuestions()
    questions.learn(
        Figures(prompt_tokens=5, output_tokens=4, finished={"length": 1}),
        Figures(prompt_tokens=10, output_tokens=5, finished={"length": 2}),
    )
    return questions


def counted(prompt: float, output: float, length: float, **now: float) -> Figures:
    return Figures(prompt_tokens=prompt, output_tokens=output, finished={"length": length}, **now)


def test_a_question_is_no_load_before_during_and_after(own: OwnQuestions) -> None:
    """vLLM counts the prompt, then the token, then the end; a reading may fall between any two of them."""
    readings = [own.left_out(counted(10, 5, 2))]
    with own.asking():
        readings.append(own.left_out(counted(10, 5, 2, waiting=1)))
        readings.append(own.left_out(counted(15, 5, 2, running=1)))
        readings.append(own.left_out(counted(15, 6, 2, running=1)))
    readings.append(own.left_out(counted(15, 6, 3)))
    for before, now in itertools.pairwise(readings):
        load = load_between(before, now, 1.0)
        assert (load.running, load.waiting) == (0, 0)
        assert (load.prompt_tokens_per_s, load.output_tokens_per_s) == (0, 0)
        assert now.finished == before.finished


def test_what_clients_ask_meanwhile_is_counted_whole(own: OwnQuestions) -> None:
    before = own.left_out(counted(10, 5, 2))
    with own.asking():
        during = own.left_out(counted(10 + 40, 5 + 7, 2, running=2, waiting=3))
    after = own.left_out(counted(10 + 40 + 5, 5 + 9 + 1, 3 + 1))
    assert (during.running, during.waiting) == (2, 2)
    assert after.prompt_tokens - before.prompt_tokens == 40
    assert after.output_tokens - before.output_tokens == 9
    assert after.finished["length"] - before.finished["length"] == 1
