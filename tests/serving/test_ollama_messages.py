"""Ollama's messages as chat's: which call a result belongs to, and how long that takes to find."""

from __future__ import annotations

import time
from typing import Any

import pytest

from appliance.serving.errors import ApiError
from appliance.serving.fields import Ignored
from appliance.serving.messages import MAX_MESSAGES
from appliance.serving.ollama.messages import translate_messages


def call(name: str, **fields: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {}}, **fields}


def calls(*made: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(made)}


def result(**fields: Any) -> dict[str, Any]:
    return {"role": "tool", "content": "x", **fields}


def answered(*messages: dict[str, Any]) -> list[str]:
    """The ids of the calls that results belong to."""
    translated = translate_messages(list(messages), Ignored(strict=True))
    return [message["tool_call_id"] for message in translated if message["role"] == "tool"]


@pytest.mark.parametrize(
    ("results", "ids"),
    [
        ([{}, {}, {}], ["call_1", "b", "call_3"]),
        ([{"tool_name": "g"}, {"tool_name": "f"}, {}], ["b", "call_1", "call_3"]),
        ([{"tool_call_id": "b"}, {}, {"tool_name": "f"}], ["b", "call_1", "call_3"]),
        ([{"tool_call_id": "b", "tool_name": "g"}, {"tool_name": ""}], ["b", "call_1"]),
    ],
)
def test_a_result_belongs_to_the_first_call_that_it_may(results: list[dict[str, Any]], ids: list[str]) -> None:
    """By its id, its name, both or neither, among those without a result."""
    assert answered(calls(call("f"), call("g", id="b"), call("f")), *(result(**said) for said in results)) == ids


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({"tool_call_id": "b"}, "messages[2].tool_call_id"),
        ({"tool_name": "g"}, "messages[2].tool_name"),
        ({"tool_name": "f", "tool_call_id": "b"}, "messages[2].tool_call_id"),
    ],
)
def test_a_call_has_one_result(said: dict[str, Any], param: str) -> None:
    """Whatever named it before."""
    with pytest.raises(ApiError) as refused:
        answered(calls(call("f"), call("g", id="b")), result(tool_name="g"), result(**said))
    assert refused.value.param == param


def test_results_in_reverse_take_time_in_proportion() -> None:
    """However many calls are open."""
    names = [f"f{number}" for number in range(8_000)]
    began = time.process_time()
    ids = answered(calls(*map(call, names)), *(result(tool_name=name) for name in reversed(names)))
    assert time.process_time() - began < 2
    assert (ids[0], ids[-1]) == (f"call_{len(names)}", "call_1")


def test_too_many_messages_are_refused_before_they_are_read() -> None:
    """Not even the first is."""
    with pytest.raises(ApiError) as refused:
        translate_messages([{"wrong": 1}] * (MAX_MESSAGES + 1), Ignored(strict=True))
    assert refused.value.param == "messages"
