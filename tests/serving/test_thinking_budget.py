"""Budgets of reasoning over HTTP, with a real model: each spelling of them, in each API, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from appliance.serving.fields import IGNORED_HEADER
from tests.running import engine, fetch, wait_for
from tests.serving.talking_door import TEMPLATE
from tests.tiny import write_checkpoint

HELLO = [{"role": "user", "content": "hi"}]
THINK = {"messages": HELLO, "enable_thinking": True, "temperature": 1.0, "seed": 3, "max_tokens": 60}
COUNT = 9
MARKER = len("</think>")  # each character is a token of this model


def served(home: Any, **settings: Any) -> Iterator[str]:
    folder = write_checkpoint(home / "models" / "tiny", max_position_embeddings=4096)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    profile = home / "profile.json"
    profile.write_text(
        json.dumps({"schema": 1, "name": "tiny", "model": {"path": "tiny"}, "max-num-seqs": 8, **settings})
    )
    with engine(home, "--profile", str(profile)) as (_, url):
        wait_for("the engine is ready", lambda: fetch(f"{url}/health")[0] == 200)
        yield url


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from served(tmp_path_factory.mktemp("thinking") / "home", **{"reasoning-parser": "think"})


@pytest.fixture(scope="module")
def thoughtless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a model that does not reason."""
    yield from served(tmp_path_factory.mktemp("thoughtless") / "home", **{"reasoning-parser": "none"})


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}{path}", json=body, timeout=60)


def reasoning_tokens(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["completion_tokens_details"]["reasoning_tokens"])


def is_bounded(tokens: int, count: int) -> bool:
    """With the marker. A character may have been completed first; white space at the beginning is not counted."""
    return abs(tokens - count - MARKER) <= 3


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking_token_budget": COUNT},
        {"thinking_budget": COUNT},
        {"thinking_budget_tokens": COUNT},
        {"reasoning": {"max_tokens": COUNT}},
        {"thinking_budget": COUNT, "reasoning": {"max_tokens": COUNT, "effort": "low"}},
    ],
)
def test_each_spelling(url: str, fields: dict[str, Any]) -> None:
    answer = post(url, "/v1/chat/completions", **THINK, **fields)
    assert is_bounded(reasoning_tokens(answer), COUNT)
    assert answer.json()["choices"][0]["message"]["content"]


def test_without_bounds_it_goes_on(url: str) -> None:
    for budget in (None, -1, 1000):
        answer = post(url, "/v1/chat/completions", **THINK, thinking_token_budget=budget)
        assert reasoning_tokens(answer) > 40


def test_each_of_several_answers_has_the_whole_budget(url: str) -> None:
    answer = post(url, "/v1/chat/completions", **THINK, thinking_token_budget=COUNT, n=3, return_token_ids=True)
    assert answer.status_code == 200, answer.text
    marker = post(url, "/tokenize", prompt="</think>").json()["tokens"]
    for choice in answer.json()["choices"]:
        tokens = choice["token_ids"]
        assert marker in [tokens[at : at + len(marker)] for at in range(COUNT, COUNT + 4)]
        assert choice["message"]["content"]


def test_the_answer_behind_it_keeps_to_its_form(url: str) -> None:
    answer = post(url, "/v1/chat/completions", **THINK, thinking_token_budget=COUNT, guided_regex="[0-9]{3}")
    assert is_bounded(reasoning_tokens(answer), COUNT)
    assert len(answer.json()["choices"][0]["message"]["content"]) == 3


def test_a_stop_string_ends_the_answer_in_what_is_forced(url: str) -> None:
    answer = post(url, "/v1/chat/completions", **THINK, thinking_token_budget=COUNT, stop=["</thi"])
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning"]


def test_anthropics_and_the_responses_api_have_it(url: str, thoughtless: str) -> None:
    """Claude Code sends a budget to any model: one that does not reason has no use for it."""
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = {"messages": HELLO, "max_tokens": 1100, "thinking": thinking, "temperature": 0}
    answer = post(url, "/v1/messages", **body)
    assert answer.status_code == 200, answer.text
    assert is_bounded(answer.json()["usage"]["output_tokens_details"]["thinking_tokens"], 1024)
    unused = post(thoughtless, "/v1/messages", **body | {"max_tokens": 1025})
    assert unused.status_code == 200, unused.text
    assert "thinking.budget_tokens" in unused.headers[IGNORED_HEADER].split(", ")

    kwargs = {"chat_template_kwargs": {"enable_thinking": True}, "seed": 3}
    answer = post(url, "/v1/responses", input="hi", max_output_tokens=50, reasoning={"max_tokens": COUNT}, **kwargs)
    assert answer.status_code == 200, answer.text
    assert is_bounded(answer.json()["usage"]["output_tokens_details"]["reasoning_tokens"], COUNT)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"thinking_token_budget": 1.5}, "thinking_token_budget"),
        ({"thinking_budget": "many"}, "thinking_budget"),
        ({"thinking_budget_tokens": 1 << 40}, "thinking_budget_tokens"),
        ({"reasoning": {"max_tokens": True}}, "reasoning.max_tokens"),
        ({"reasoning": {"effort": "frob"}}, "reasoning.effort"),
        ({"thinking_budget": 5, "reasoning": {"max_tokens": 6}}, "reasoning.max_tokens"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "enable_thinking"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
            "chat_template_kwargs.reasoning_effort",
        ),
        ({"enable_thinking": True, "reasoning": {"enabled": False}}, "reasoning.enabled"),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs.enable_thinking",
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": True, "thinking": False}},
            "chat_template_kwargs.thinking",
        ),
        ({"include_reasoning": True, "reasoning": {"exclude": True}}, "reasoning.exclude"),
        ({"reasoning": {"efort": "high"}}, "reasoning.efort"),
    ],
)
def test_what_cannot_be_is_refused_by_its_path(url: str, fields: dict[str, Any], param: str) -> None:
    answer = post(url, "/v1/chat/completions", messages=HELLO, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "low", "reasoning": {"effort": "low", "exclude": False}, "include_reasoning": True},
        {"reasoning": {"enabled": True}, "enable_thinking": True, "chat_template_kwargs": {"enable_thinking": True}},
    ],
)
def test_fields_of_one_meaning_may_agree(url: str, fields: dict[str, Any]) -> None:
    assert post(url, "/v1/chat/completions", messages=HELLO, max_tokens=1, **fields).status_code == 200


def test_a_model_without_reasoning_refuses_a_budget(thoughtless: str) -> None:
    for fields, param in (
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"reasoning": {"max_tokens": 5}}, "reasoning.max_tokens"),
    ):
        answer = post(thoughtless, "/v1/chat/completions", messages=HELLO, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    answer = post(thoughtless, "/v1/responses", input="hi", reasoning={"max_tokens": 5})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning.max_tokens")
    answer = post(thoughtless, "/v1/completions", prompt="hi", thinking_token_budget=5)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "thinking_token_budget")


def test_reasoning_may_be_left_out_of_the_answer(url: str) -> None:
    """As OpenRouter's clients say it."""
    fields = {"reasoning": {"exclude": True, "enabled": True, "max_tokens": COUNT}}
    answer = post(url, "/v1/chat/completions", **THINK | {"enable_thinking": None}, **fields)
    assert is_bounded(reasoning_tokens(answer), COUNT)
    assert "reasoning" not in answer.json()["choices"][0]["message"]
