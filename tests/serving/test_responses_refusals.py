"""Bad requests to /v1/responses: the field by its path in that API."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.supervisor.scripted import Door

FUNCTION = {"type": "function", "name": "f", "parameters": {}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"content": "x"}]}, "input[0].type"),
        ({"input": [{"type": "computer_call_output"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{**CALL, "call_id": None}]}, "input[0].call_id"),
        ({"input": [{**CALL, "name": ""}]}, "input[0].name"),
        ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"),
        ({"input": [CALL, CALL]}, "input[1].call_id"),
        ({"input": [OUTPUT]}, "input[0].call_id"),
        ({"input": [CALL, OUTPUT, OUTPUT]}, "input[2].call_id"),
        ({"input": [CALL, {**OUTPUT, "output": 3}]}, "input[1].output"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
        ({"input": [{"type": "reasoning", "content": [{"type": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": "x" * 100_000}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1_000_000}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"instructions": 3}, "instructions"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"truncation": "middle"}, "truncation"),
        ({"include": ["message.colour"]}, "include[0]"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {str(key): "" for key in range(17)}}, "metadata"),
        ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
        ({"reasoning": {"effort": 1}}, "reasoning.effort"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "frob"}}}}, "text.format.schema"),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [{"type": 3}]}, "tools[0].type"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}, {"type": "function"}]}, "tools[1].name"),
        ({"tools": [FUNCTION, {"type": "web_search"}, FUNCTION]}, "tools[2].name"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**FUNCTION, "parameters": 3}]}, "tools[0].parameters"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "g"}]}},
            "tool_choice.tools[0].name",
        ),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "tools": [{"name": "f"}]}},
            "tool_choice.mode",
        ),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice"),
        ({"inputs": "x"}, "inputs"),
        ({"instructions": "x" * 1000}, "instructions"),
        ({"instructions": "x" * 100_000}, "instructions"),
        ({"instructions": "x", "input": "x" * 1000}, "input"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(door: Door, body: dict[str, Any], param: str) -> None:
    """In OpenAI's shape, and the engine goes on."""
    response = door.http.post("/v1/responses", json={"input": "x", **body})
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert param in error["message"] or error["code"] in ("context_length_exceeded", "responses_not_stored")
    assert door.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("DELETE", ""), ("GET", "/input_items")],
)
def test_nothing_is_kept_unless_the_profile_says_so(door: Door, method: str, path: str) -> None:
    """404, with a code that says why."""
    response = door.http.request(method, f"/v1/responses/resp_1{path}")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "responses_not_stored")


def test_the_accepted_values_are_listed(door: Door) -> None:
    """Those of the field's type, as JSON."""
    message = door.http.post("/v1/responses", json={"input": "x", "truncation": "x"}).json()["error"]["message"]
    assert re.findall(r'"([^"]*)"', message) == ["x", "auto", "disabled"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "message", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{**CALL, "call_id": None}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "tools": [{"name": "f"}]}},
            "tool_choice.mode",
        ),
    ],
)
def test_what_is_missing_is_not_called_wrong(door: Door, body: dict[str, Any], param: str) -> None:
    """A program can tell the two apart."""
    error = door.http.post("/v1/responses", json={"input": "x", **body}).json()["error"]
    assert (error["param"], error["code"]) == (param, "missing_field")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "g"}])
def test_the_tool_whose_schema_is_wrong_is_named(door: Door, choice: Any) -> None:
    """By its place in the request, where a tool that runs elsewhere comes first."""
    wrong = {**FUNCTION, "name": "g", "parameters": {"type": "object", "properties": {"x": {"type": "frob"}}}}
    body = {"input": "x", "tools": [{"type": "web_search"}, FUNCTION, wrong], "tool_choice": choice}
    response = door.http.post("/v1/responses", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_grammar")
    assert error["param"] == "tools[2].parameters"
    assert error["message"].startswith("tools[2].parameters ")


def test_one_answer_may_be_requested(door: Door) -> None:
    """There is one in any case."""
    assert door.http.post("/v1/responses", json={"input": "x", "n": 1, "max_output_tokens": 1}).status_code == 200
