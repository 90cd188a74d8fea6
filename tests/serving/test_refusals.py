"""Bad requests: a status that fits, OpenAI's shape, the field by name, and an engine that goes on as before."""

from __future__ import annotations

import json
import socket
from typing import Any

import psutil
import pytest

from appliance.serving.error_shape import error_body
from appliance.serving.errors import bad_request
from tests.supervisor.scripted import Door

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def refused(door: Door, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = door.http.post(path, content=raw, headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert door.http.get("/health").status_code == 200
    return response.status_code, error


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("max_tokens", -5, "-5"),
        ("max_tokens", 0, "1"),
        ("max_tokens", "many", '"many"'),
        ("max_tokens", True, "true"),
        ("max_tokens", 1.5, "1.5"),
        ("max_tokens", 10**30, "2,147,483,648"),
        ("temperature", -0.1, "-0.1"),
        ("temperature", 2.5, "2.5"),
        ("temperature", "hot", "number"),
        ("temperature", 10**400, "out of range; use a number"),
        ("top_p", 0, "0"),
        ("top_p", 1.1, "1.1"),
        ("top_k", -2, "-1"),
        ("min_p", 2, "1"),
        ("presence_penalty", 3, "2"),
        ("repetition_penalty", 0, "0.01"),
        ("repetition_penalty", 1e-40, "0.01"),
        ("stop_token_ids", [7] * 1025, "1,025"),
        ("n", 0, "1"),
        ("n", 10_000, "128"),
        ("seed", 10**30, "9,223,372,036,854,775,807"),
        ("stop", 3, "3"),
        ("stop", ["a"] * 17, "17"),
        ("stop", "", "1,000"),
        ("stop", ["a", ""], "stop[1]: "),
        ("stop_token_ids", [7, 100_000], "stop_token_ids[1]: "),
        ("stream", "yes", '"yes"'),
        ("stream_options", {"include_usage": 1}, "include_usage: 1"),
        ("stream_options", {"continuous_usage_stats": "yes"}, '"yes"'),
        ("stream_options", {"include_usage": True}, "stream"),
        ("user", 5, "5"),
        ("metadata", "x", '"x"'),
        ("store", "yes", '"yes"'),
        ("service_tier", 5, "5"),
        ("safety_identifier", [], "[]"),
        ("prompt_cache_key", 5, "5"),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {}, "name": 5}}, "json_schema.name: 5"),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {}, "strict": "x"}}, '"x"'),
        ("priority", "high", "integer"),
        ("min_tokens", 600, "600"),
        ("tools", [{"type": "function"}], "tools"),
        ("response_format", {"type": "xml"}, "response_format.type"),
        ("structured_outputs", {"json_object": 5}, "json_object: 5"),
        ("logit_bias", [5], "object"),
        ("logit_bias", {"512": 1}, "512"),
        ("logit_bias", {"-1": 1}, "-1"),
        ("logit_bias", {"fox": 1}, '"fox"'),
        ("logit_bias", {"5": 100.5}, "100.5"),
        ("logit_bias", {"5": "much"}, '"much"'),
        ("logit_bias", {"5": True}, "true"),
        ("logit_bias", {str(token): 1 for token in range(301)}, "301"),
        ("best_of", 3, "3"),
        ("temprature", 1, " temperature?"),
        ("include_stop_str_in_output", True, "true"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_wrong_field_is_named_with_its_value(door: Door, path: str, field: str, value: Any, says: str) -> None:
    """Never ignored, never an internal error."""
    body = {"messages": HELLO} if path == CHAT else {"prompt": "x"}
    status, error = refused(door, path, {**body, field: value})
    assert status == 400
    assert says in error["message"]
    assert field in error["message"]
    assert error["param"].startswith(field)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": HELLO, "max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        (CHAT, {"messages": HELLO, "tools": {}}, "tools"),
        (COMPLETIONS, {"prompt": "x", "max_completion_tokens": 6}, "max_completion_tokens"),
        ("/v1/embeddings", {"input": "x", "user": 5}, "user"),
        ("/v1/responses", {"input": "x", "user": 5}, "user"),
        ("/v1/responses", {"input": "x", "safety_identifier": 5}, "safety_identifier"),
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "text", "name": 5}}}, "text.format.name"),
    ],
)
def test_fields_of_one_api_are_refused_by_name(door: Door, path: str, fields: dict[str, Any], param: str) -> None:
    """Contradictions, wrong types of what has no effect, and what another API would have understood."""
    status, error = refused(door, path, fields)
    assert (status, error["param"]) == (400, param)


def test_one_length_under_both_names_is_no_contradiction(door: Door) -> None:
    """Clients send both, so that old servers understand one."""
    body = {"messages": HELLO, "max_tokens": 3, "max_completion_tokens": 3}
    answer = door.http.post(CHAT, json=body)
    assert answer.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([3], "messages[0]"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"content": "x"}], "messages[0].role"),
        ([{}], "messages[0].role"),
        ([*HELLO, {"role": "wizard", "content": "x"}], "messages[1].role"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "function", "name": "f", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls[0].id"),
        ([{"role": "user", "content": "\ud800"}], "messages"),
    ],
)
def test_wrong_messages_are_named_by_their_place(door: Door, messages: Any, param: str) -> None:
    """Down to the part of the message, with a code for programs."""
    status, error = refused(door, CHAT, {"messages": messages})
    assert status == 400
    assert error["code"] in (
        "invalid_value",
        "unsupported_field",
        "unsupported_content",
        "invalid_body",
        "missing_field",
    )
    assert error["param"] in (param, None)
    if error["param"] is None:
        assert "JSON" in error["message"]  # half of a surrogate pair is no JSON text


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/api/chat"])
def test_a_role_that_is_missing_is_called_so(door: Door, path: str) -> None:
    answer = door.http.post(path, json={"messages": [{}], "max_tokens": 3})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error if path == "/api/chat" else error["message"]) == "messages[0].role is missing."


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 5000, "-" + "9" * 5000, "9" * 5000 + ".5"])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, '{"messages": [], "temperature": %s}', "temperature"),
        (CHAT, '{"messages": [{"role": "user", "content": [{"n": %s}]}]}', "messages[0].content[0].n"),
        (COMPLETIONS, '{"prompt": [1, [2, %s]]}', "prompt[1][1]"),
        ("/v1/responses", '{"input": "x", "metadata": {"a": "1e400", "b": %s}}', "metadata.b"),
        ("/v1/messages", '{"messages": [], "unknown": [[], {}, %s, 1e400]}', "unknown[2]"),
        ("/v1/embeddings", '{"input": %s}', "input"),
        ("/tokenize", '{"prompt": "x", "a": %s}', "a"),
        ("/api/generate", '{"prompt": "x", "options": {"seed": %s}}', "options.seed"),
    ],
)
def test_a_number_that_no_double_holds_is_named_with_its_place(
    door: Door, path: str, body: str, param: str, number: str
) -> None:
    """And integers of more digits than are converted, in whatever field."""
    answer = door.http.post(path, content=(body % number).encode())
    error = answer.json()["error"]
    message = error if path.startswith("/api/") else error["message"]
    assert answer.status_code == 400
    assert message.startswith(f"{param}: ")
    assert ("4,299" if number.lstrip("-").isdigit() else "1.79e308") in message
    assert len(message) < 200
    assert path.startswith("/api/") or error["param"] == param


def test_a_number_too_large_for_a_field_that_is_sent_twice_is_refused(door: Door) -> None:
    """Its place in the text is not known, as the other one counts; or it cannot be told, as UTF-8 does not have it."""
    for body in (b'{"prompt": "x", "seed": 1e400, "seed": 1}', b'{"a": 1e400, "\\ud800": [1e400], "a": 1}'):
        status, error = refused(door, COMPLETIONS, body)
        assert (status, error["param"], error["code"]) == (400, None, "invalid_body")


def test_an_error_may_quote_half_a_character() -> None:
    error = bad_request("\ud800: is odd", "\ud800")
    for path in (CHAT, "/v1/messages", "/api/chat"):
        scope: Any = {"path": path, "headers": []}
        assert b"?" in error_body(error, scope)


def test_a_template_may_be_given_variables_of_any_name(door: Door) -> None:
    """Also of those that Python's own functions give their arguments."""
    given = {"self": 5, "": 1, "loop": 2, "cls": 3, "é": 4, "args": [], "kwargs": {}}
    answer = door.http.post(CHAT, json={"messages": HELLO, "max_tokens": 2, "chat_template_kwargs": given})
    assert answer.status_code == 200, answer.text


def test_whole_numbers_may_be_written_with_a_point(door: Door) -> None:
    """Wherever an integer is wanted, in lists, too."""
    body = {"prompt": [[7.0, 8]], "max_tokens": 2.0, "stop_token_ids": [5.0], "logprobs": 1.0, "top_k": 3.0}
    answer = door.http.post(COMPLETIONS, json=body)
    assert answer.status_code == 200, answer.text
    assert door.http.post("/detokenize", json={"tokens": [7.0]}).status_code == 200
    status, error = refused(door, COMPLETIONS, {**body, "stop_token_ids": [5.0, 5.5]})
    assert (status, error["param"]) == (400, "stop_token_ids[1]")


def test_too_many_messages_are_told_their_number(door: Door) -> None:
    """However short they are."""
    status, error = refused(door, CHAT, {"messages": [{"role": "user", "content": ""}] * 30_000})
    assert (status, error["param"]) == (400, "messages")
    assert "30,000" in error["message"]
    assert "20,000" in error["message"]


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        (["a", 3], "prompt"),
        ([3, -1], "prompt[1]"),
        ([3, 512], "prompt[1]"),
        ([[3], [4, 99_999]], "prompt[1][1]"),
        (7, "prompt"),
        (None, "prompt"),
        (["x"] * 200, "prompt"),
        ([[1.5]], "prompt[0][0]"),
    ],
)
def test_wrong_prompts_are_named_by_their_place(door: Door, prompt: Any, param: str) -> None:
    """Empty, mixed, out of the vocabulary, too many."""
    status, error = refused(door, COMPLETIONS, {"prompt": prompt})
    assert (status, error["param"]) == (400, param)
    assert error["code"] == "invalid_value"


def test_a_prompt_longer_than_the_context_is_told_both_numbers(door: Door) -> None:
    """And so is one that fits, but not with the tokens asked for."""
    status, error = refused(door, COMPLETIONS, {"prompt": [7] * 600})
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert "600" in error["message"]
    # By these words LiteLLM knows such a refusal from others (litellm_core_utils/exception_mapping_utils.py).
    assert "this model's maximum context length is 512" in error["message"].lower()
    status, error = refused(door, CHAT, {"messages": HELLO, "max_tokens": 5000})
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "max_tokens")
    assert "5,000" in error["message"]
    assert "512" in error["message"]


def test_another_model_is_told_what_is_served(door: Door) -> None:
    """404, as clients expect it."""
    status, error = refused(door, CHAT, {"model": "gpt-17", "messages": HELLO})
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'tiny'" in error["message"]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", ""),
        (b"{", ""),
        (b'{"prompt": "x",}', "byte 15"),
        (b"[1]", "array"),
        (b'"x"', "string"),
        (b"null", "null"),
        (b'{"prompt": "\xff\xfe"}', "position 12"),
        (b'{"prompt": "x", "temperature": NaN}', ""),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ""),
        (b'{"prompt": "x", "a": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, ""),
        (b'{"prompt": "x\x00y"}', ""),
        (b"a=1&b=2", ""),
    ],
)
def test_a_body_that_is_no_request(door: Door, raw: bytes, says: str) -> None:
    """What is wrong with it, and where."""
    status, error = refused(door, COMPLETIONS, raw)
    assert (status, error["code"]) == (400, "invalid_body")
    assert says in error["message"]


def test_a_50_mb_body_is_refused_without_keeping_it(door: Door) -> None:
    """By its announced length before a byte of it; without one, when the limit is passed. The client hears why."""
    host, _, port = door.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    process = psutil.Process(door.process.pid)
    before = process.memory_info().rss
    for content in (b"x" * 50_000_000, (b"x" * 1_000_000 for _ in range(50))):
        response = door.http.post("/v1/completions", content=content)
        assert response.status_code == 413
        assert "larger than 8 MiB" in response.json()["error"]["message"]
    assert process.memory_info().rss - before < 30_000_000


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", CHAT, 405), ("PUT", "/nothing", 404)]
)
def test_other_paths_and_methods(door: Door, method: str, path: str, status: int) -> None:
    """Errors of the framework have the same shape as ours."""
    response = door.http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert ("POST" in response.headers.get("allow", "").split(", ")) == (status == 405)


@pytest.mark.parametrize("nested", [0, 400])
def test_an_error_shows_json(door: Door, nested: int) -> None:
    """Of a value with other values in it as well, shortened."""
    value: Any = {"type": "function", "strict": True, "name": None, "text": "über\n"}
    for _ in range(nested):
        value = [value]
    status, error = refused(door, CHAT, {"messages": HELLO, "documents": value})
    assert (status, error["code"]) == (400, "unsupported_field")
    assert json.dumps(value, ensure_ascii=False)[:50] in error["message"]
    assert len(error["message"]) < 200


def test_an_error_never_repeats_a_long_value(door: Door) -> None:
    """What was sent may be secret, and is certainly long."""
    status, error = refused(door, COMPLETIONS, {"prompt": "x", "temperature": "secret" * 1000})
    assert status == 400
    assert len(error["message"]) < 200
