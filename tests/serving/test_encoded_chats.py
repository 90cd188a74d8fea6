"""Chats with a model whose prompts an encoder writes: the prompt is the published one, and answers in DSML are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.checkpoint.encoders import ENCODERS
from appliance.home import Home
from appliance.serving.fields import IGNORED_HEADER
from tests.serving.talking_door import choice, frames, talking_door
from tests.supervisor.scripted import Door

CALL = (
    '<｜DSML｜toolcalls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city">Rome</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜toolcalls>'
)
ANSWERS = [f"I should look.\n\n{CALL}</think>", "Why.</think>So."]
WITHIN, PLAIN = range(2)
# In another order than templates are given it, and with a field that they are not.
FUNCTION = {
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "name": "weather",
    "strict": False,
}
TOOLS = [{"type": "function", "function": FUNCTION}]
ASKED = {"role": "user", "content": "Rome?"}


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    home = Home.at(tmp_path_factory.mktemp("encoded") / "home").create()
    with talking_door(home, ANSWERS, **{"chat-encoding": "deepseek-v4-0731"}) as door:
        door.wait("ready")
        yield door


def tokens(door: Door, **body: Any) -> list[int]:
    """Those of the prompt."""
    response = door.http.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    return list(response.json()["tokens"])


def same_tokens(door: Door, messages: list[dict[str, Any]], **variables: Any) -> list[int]:
    text = ENCODERS["deepseek-v4-0731"]("test").render(messages, **variables)
    return tokens(door, prompt=text, add_special_tokens=False)


def test_the_prompt_is_the_encoders(talking: Door) -> None:
    """With the tools as the client sent them."""
    assert tokens(talking, messages=[ASKED]) == same_tokens(talking, [ASKED])
    assert tokens(talking, messages=[ASKED], tools=TOOLS) == same_tokens(talking, [ASKED], tools=TOOLS)
    efforts: dict[str, dict[str, Any]] = {"none": {"thinking": False}, "low": {}, "max": {"reasoning_effort": "max"}}
    for effort, variables in efforts.items():
        seen = tokens(talking, messages=[ASKED], reasoning_effort=effort)
        assert seen == same_tokens(talking, [ASKED], **variables), effort
    switched = tokens(talking, messages=[ASKED], chat_template_kwargs={"thinking": False})
    assert switched == same_tokens(talking, [ASKED], thinking=False)


def test_fields_and_roles_that_only_this_model_knows(talking: Door) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "latest_reminder", "content": "today"}, {**ASKED, "task": "title"},
        {"role": "assistant", "content": "A", "prefix": True},
    ]  # fmt: skip
    assert tokens(talking, messages=messages) == same_tokens(talking, messages)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{**ASKED, "task": "poem"}]}, "messages[0].task"),
        ({"messages": [{"role": "assistant", "content": "x", "prefix": "yes"}]}, "messages[0].prefix"),
        ({"messages": [{"role": "assistant", "content": "x", "prefix": True}, ASKED]}, "messages[0].prefix"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{**ASKED, "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [ASKED], "chat_template_kwargs": {"thinking": "yes"}}, "chat_template_kwargs.thinking"),
    ],
)
def test_what_the_encoder_refuses_is_a_bad_request_by_its_path(talking: Door, body: dict[str, Any], param: str) -> None:
    response = talking.http.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_a_call_from_within_reasoning(talking: Door) -> None:
    """Whole and streamed, with a spelling that models have beside the published one."""
    body: dict[str, Any] = {"messages": [ASKED], "tools": TOOLS, "seed": WITHIN}
    answer = choice(talking, **body)
    assert answer["finish_reason"] == "tool_calls"
    assert (answer["message"]["reasoning_content"], answer["message"]["content"]) == ("I should look.", None)
    (call,) = answer["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome", "days": 2}
    deltas = [frame["choices"][0]["delta"] for frame in frames(talking, **body)]
    assert "".join(delta.get("content") or "" for delta in deltas) == ""
    parts = [call["function"].get("arguments", "") for delta in deltas for call in delta.get("tool_calls", [])]
    assert json.loads("".join(parts)) == {"city": "Rome", "days": 2}


def test_reasoning_that_the_prompt_opened(talking: Door) -> None:
    message = choice(talking, messages=[ASKED], seed=PLAIN)["message"]
    assert (message["reasoning_content"], message["content"]) == ("Why.", "So.")


def test_a_field_of_another_role_is_ignored_and_named(talking: Door) -> None:
    response = talking.http.post("/tokenize", json={"messages": [{"role": "system", "content": "x", "prefix": True}]})
    assert response.headers[IGNORED_HEADER] == "messages[].prefix"
