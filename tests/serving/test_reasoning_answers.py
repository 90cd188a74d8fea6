"""Reasoning in the answers of /v1/chat/completions, apart from what is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.home import Home
from tests.serving.talking_door import choice, frames, talking_door
from tests.supervisor.scripted import Door

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
ANSWERS = [
    "<think>\nLet me see.\n</think>\n\nIt rains.",
    "Let me see.\n</think>\n\nIt rains.",
    f"<think>I call.</think>{CALL}",
    "It rains.<|user|> It <|user|>pours.",
    "<think>Let me",
]
MARKED, OPENED, CALLING, SPECIAL, CUT = range(5)
HELLO = [{"role": "user", "content": "How is the weather?"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    home = Home.at(tmp_path_factory.mktemp("thinking") / "home").create()
    with talking_door(home, ANSWERS, **{"tool-call-parser": "hermes", "reasoning-parser": "think"}) as door:
        door.wait("ready")
        yield door


@pytest.fixture(scope="module")
def special(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """Of a format whose markers are special tokens."""
    home = Home.at(tmp_path_factory.mktemp("special") / "home").create()
    with talking_door(home, ANSWERS, **{"tool-call-parser": "llama3-json", "reasoning-parser": "none"}) as door:
        door.wait("ready")
        yield door


def streamed(door: Door, **body: Any) -> dict[str, str]:
    """The parts of a streamed message, put together."""
    parts: dict[str, str] = {}
    for chunk in frames(door, **body):
        for name, text in chunk["choices"][0]["delta"].items():
            if isinstance(text, str):
                parts[name] = parts.get(name, "") + text
    return parts


@pytest.mark.parametrize(
    ("seed", "effort", "content", "reasoning"),
    [
        (MARKED, None, "It rains.", "Let me see."),
        (OPENED, "high", "It rains.", "Let me see."),
        (SPECIAL, "none", "It rains. It pours.", None),
        (CUT, None, "", "Let me"),
    ],
)
def test_reasoning_is_apart_from_content(
    thinking: Door, seed: int, effort: str | None, content: str, reasoning: str | None
) -> None:
    """Under both names that clients read, streamed or not, and also where the prompt has begun it."""
    body = {"messages": HELLO, "seed": seed, "reasoning_effort": effort}
    message = choice(thinking, **body)["message"]
    assert (message["content"], message.get("reasoning_content"), message.get("reasoning")) == (
        content, reasoning, reasoning,
    )  # fmt: skip
    parts = streamed(thinking, **body)
    assert (parts["content"], parts.get("reasoning_content"), parts.get("reasoning")) == (
        content, reasoning, reasoning,
    )  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_may_be_left_out(thinking: Door, stream: bool) -> None:
    """It has been generated all the same, and is counted."""
    body: dict[str, Any] = {"messages": HELLO, "seed": MARKED, "include_reasoning": False}
    if stream:
        parts = streamed(thinking, **body)
        assert parts == {"role": "assistant", "content": "It rains."}
        usage = frames(thinking, **body, stream_options={"include_usage": True})[-1]["usage"]
    else:
        answer = thinking.http.post("/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": "It rains.", "refusal": None}
        usage = answer["usage"]
    assert len("Let me see.") <= usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


def test_reasoning_goes_with_calls(thinking: Door) -> None:
    """Both are read from one answer."""
    answered = choice(thinking, messages=HELLO, seed=CALLING, tools=TOOLS)
    assert answered["message"]["reasoning"] == "I call."
    assert answered["message"]["content"] is None
    assert [call["function"]["name"] for call in answered["message"]["tool_calls"]] == ["f"]
    assert answered["finish_reason"] == "tool_calls"


def test_no_reasoning_is_counted_where_there_is_none(thinking: Door) -> None:
    """The usage says so."""
    body = {"messages": HELLO, "seed": SPECIAL, "reasoning_effort": "none"}
    usage = thinking.http.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize(
    ("body", "content"),
    [
        ({}, "It rains. It pours."),
        ({"tools": TOOLS}, "It rains. It pours."),
        ({"tools": TOOLS, "skip_special_tokens": False}, ANSWERS[SPECIAL]),
    ],
)
def test_special_tokens_that_mark_nothing_are_no_content(special: Door, body: dict[str, Any], content: str) -> None:
    """Whether or not the format needs some of them, unless the client wants them."""
    body = {"messages": HELLO, "seed": SPECIAL, **body}
    assert choice(special, **body)["message"]["content"] == content
    assert streamed(special, **body)["content"] == content
