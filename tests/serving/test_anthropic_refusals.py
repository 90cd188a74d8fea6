"""What /v1/messages refuses: in Anthropic's shape, by the path of the field as the client has written it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import msgspec
import pytest

from appliance.home import Home
from appliance.serving.anthropic.answers import AnthropicError
from appliance.serving.fields import IGNORED_HEADER
from tests.supervisor.scripted import Door

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]}


def result(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", **fields}]}


def refused(door: Door, body: Any, path: str = "/v1/messages") -> tuple[int, dict[str, Any]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = door.http.post(path, content=raw, headers={"anthropic-version": "2023-06-01"})
    msgspec.json.decode(response.content, type=AnthropicError)
    content = response.json()
    assert content["request_id"] == response.headers["request-id"]
    return response.status_code, content["error"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"temperature": "hot"}, "temperature"),
        ({"metadata": "x"}, "metadata"),
        ({"service_tier": 5}, "service_tier"),
        ({"cache_control": 5}, "cache_control"),
        ({"betas": "x"}, "betas"),
        ({"tools": [{**TOOL, "cache_control": 5}]}, "tools[0].cache_control"),
        ({"tools": [{**TOOL, "defer_loading": "yes"}]}, "tools[0].defer_loading"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": ["x", ""]}, "stop_sequences[1]"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
        ({"system": 3}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"system": [{"type": "text"}]}, "system[0].text"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": 3}]}, "tools[0].input_schema"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [{**TOOL, "description": 3}]}, "tools[0].description"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}, "tools": [TOOL]}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": "g"}, "tools": [TOOL]}, "tool_choice.name"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 3}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"max_token": 5}, "max_token"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(door: Door, fields: dict[str, Any], param: str) -> None:
    """The engine never sees it."""
    body = {"max_tokens": 16, "messages": HELLO, **fields}
    status, error = refused(door, {name: value for name, value in body.items() if value is not None})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 3}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": 5}]}],
            "messages[0].content[0].cache_control",
        ),
        ([{"role": "user", "content": [{"type": "image", "source": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": ["text"], "text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}], "messages[0].content[0].type"),
        ([*HELLO, {"role": "assistant", "content": "{"}], "messages[1].role"),
        ([result()], "messages[0].content[0].tool_use_id"),
        ([CALL, result(), result()], "messages[2].content[0].tool_use_id"),
        ([CALL, result(content=[{"type": "image"}])], "messages[1].content[0].content[0].type"),
        ([CALL, result(content=3)], "messages[1].content[0].content"),
        ([CALL, result(is_error="yes")], "messages[1].content[0].is_error"),
        ([*HELLO, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]}, *HELLO],
         "messages[1].content[0].input"),
        ([{"role": "assistant", "content": [{"type": "tool_use", "id": "", "name": "f", "input": {}}]}, *HELLO],
         "messages[0].content[0].id"),
        ([{"role": "assistant", "content": [
            {"type": "text", "text": "x"}, {"type": "tool_use", "id": "t", "input": {}}]}, *HELLO],
         "messages[0].content[1].name"),
        ([{"role": "assistant", "content": [*CALL["content"], *CALL["content"]]}, *HELLO],
         "messages[0].content[1].id"),
    ],
)  # fmt: skip
def test_wrong_messages_are_named_by_their_place(door: Door, messages: list[Any], param: str) -> None:
    """Down to the part of a block, behind a system's prompt as well; and when only counted."""
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        status, error = refused(door, {"max_tokens": 16, "messages": messages, "system": "Be brief."}, path)
        assert (status, error["param"]) == (400, param)


def test_a_prompt_that_no_context_holds(door: Door) -> None:
    """In Anthropic's own words and figures, which Claude Code reads to compact the conversation."""
    for length in (1000, 100_000):
        status, error = refused(door, {"max_tokens": 16, "messages": [{"role": "user", "content": "x" * length}]})
        assert (status, error["param"], error["code"]) == (400, "messages", "context_length_exceeded")
        figures = re.search(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", error["message"])
        assert int(figures[1]) > int(figures[2]) == 512
        body = {"max_tokens": 16, "messages": HELLO, "system": "x" * length}
        status, error = refused(door, body)
        assert (status, error["param"], error["code"]) == (400, "system", "context_length_exceeded")


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/v1/messages", {"model": "claude-sonnet-4-5"}, 404, "not_found_error"),
        ("/v1/messages/count_tokens", {"model": "claude-sonnet-4-5"}, 404, "not_found_error"),
        ("/v1/messages/batches", {}, 404, "not_found_error"),
        ("/v1/messages", b"{", 400, "invalid_request_error"),
        ("/v1/messages", b"[]", 400, "invalid_request_error"),
        ("/v1/messages", b'{"a": "' + b"x" * (9 << 20) + b'"}', 413, "request_too_large"),
    ],
)
def test_what_is_refused_as_a_whole(door: Door, path: str, body: Any, status: int, kind: str) -> None:
    """An unknown path or model, no JSON, too much of it."""
    if isinstance(body, dict):
        body = {"max_tokens": 16, "messages": HELLO, **body}
    assert refused(door, body, path)[0] == status
    assert refused(door, body, path)[1]["type"] == kind


@pytest.fixture
def keys(door_home: Home) -> Iterator[None]:
    rows = [{"id": "k1", "name": "first", "sha256": hashlib.sha256(b"secret-1").hexdigest()}]
    door_home.api_keys.write_text(json.dumps({"required": True, "keys": rows}))
    yield
    door_home.api_keys.unlink()


def test_a_key_is_taken_in_either_header(door: Door, keys: None) -> None:
    """As the client sends it, depending on how it was given the key; and for every API."""
    assert refused(door, {"max_tokens": 1, "messages": HELLO})[1]["type"] == "authentication_error"
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 1, "messages": HELLO}
    for header in ("api_key", "auth_token"):
        right: dict[str, Any] = {header: "secret-1"}
        wrong: dict[str, Any] = {header: "secret-2"}
        client = anthropic.Anthropic(base_url=door.url, max_retries=0, **right)
        assert client.messages.create(**asked).role == "assistant"
        with pytest.raises(anthropic.AuthenticationError) as error:
            anthropic.Anthropic(base_url=door.url, max_retries=0, **wrong).messages.create(**asked)
        assert error.value.request_id
    assert door.http.get("/v1/models", headers={"x-api-key": "secret-1"}).status_code == 200


def test_a_page_of_another_site_is_refused(door: Door) -> None:
    """In this shape as well."""
    headers = {"Origin": "https://app.example"}
    response = door.http.post("/v1/messages", json={"max_tokens": 1, "messages": HELLO}, headers=headers)
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")


def test_a_failure_is_counted(door: Door) -> None:
    """As those of the other APIs."""

    def failures() -> float:
        lines = door.http.get("/metrics").text.splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if line.startswith('ingot:request_failure_total{status="404"')
        )

    before = failures()
    refused(door, {"max_tokens": 1, "messages": HELLO, "model": "other"})
    assert failures() == before + 1


def test_fields_without_effect_are_named_by_their_path(door: Door) -> None:
    """Those within blocks without their numbers; those that every client sends are accepted without a word."""
    block = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}, "colour": "red"}
    body = {
        "max_tokens": 2048,
        "messages": [{"role": "user", "content": [block]}],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{**TOOL, "cache_control": {"type": "ephemeral"}, "input_examples": []}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "u"},
        "frobnicate": 1,
    }
    response = door.http.post("/v1/messages/count_tokens", json=body)
    assert response.status_code == 200, response.text
    assert set(response.headers[IGNORED_HEADER].split(", ")) == {
        "frobnicate", "messages[].content[].colour", "tools", "tools[].input_examples", "thinking",
    }  # fmt: skip


def test_the_tool_whose_schema_is_wrong_is_named(door: Door) -> None:
    """In Anthropic's words."""
    wrong = {"name": "g", "input_schema": {"type": "object", "properties": {"x": {"type": "frob"}}}}
    body = {"max_tokens": 16, "messages": HELLO, "tools": [TOOL, wrong], "tool_choice": {"type": "any"}}
    status, error = refused(door, body)
    assert (status, error["param"]) == (400, "tools[1].input_schema")
