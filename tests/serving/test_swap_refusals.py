"""What no model could answer is refused before one makes room for another, in the words of the route itself."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from appliance.checkpoint.grammar import validate
from appliance.home import Home
from appliance.serving.errors import ApiError
from appliance.serving.on_request.gate import NATIVE
from appliance.serving.on_request.readable import ROUTES, Asker, ReadFormats, check_readable
from appliance.serving.parsers.registry import FORMATS
from appliance.serving.reading import ModelFormats
from appliance.serving.responses.store import ResponseStore, StoredResponse
from appliance.serving.structured import AT_A_TIME, CheckedGrammars
from tests.serving.two_models import choosing_door, launches
from tests.supervisor.scripted import Door

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object"}
BOGUS = {"type": "bogus"}
ENDLESS = {"$ref": "#"}
TOOL = {"type": "function", "function": {"name": "look"}}
BOGUS_TOOL = {
    "type": "function",
    "function": {"name": "go", "parameters": {"type": "object", "properties": {"a": BOGUS}}},
}
RIGHT: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/v1/embeddings": {"input": "hello"},
    "/api/chat": {"messages": HELLO, "stream": False},
    "/api/generate": {"prompt": "hello", "stream": False},
    "/api/embed": {"input": "hello"},
    "/api/embeddings": {"prompt": "hello"},
}
CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    *(
        ("/v1/chat/completions", fields, param)
        for fields, param in (
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
            ({"messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]}, "messages[0].tool_call_id"),
            ({"messages": [{"role": "assistant", "tool_calls": [CALL, CALL]}]}, "messages[0].tool_calls[1].id"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
            ({"tools": [5]}, "tools[0]"),
            ({"tools": {}}, "tools"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "go"}}},
             "tool_choice.function.name"),
            ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
            ({"response_format": {"type": "xml"}}, "response_format.type"),
            ({"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}},
             "response_format.json_schema"),
            ({"response_format": {"type": "text", "json_schema": {"schema": SCHEMA}}}, "response_format.json_schema"),
            ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema"),
            ({"response_format": {"type": "json_schema", "schema": SCHEMA, "json_schema": {"schema": True}}},
             "response_format.schema"),
            ({"response_format": {"type": "json_schema", "json_schema": {"schema": BOGUS}}},
             "response_format.json_schema.schema"),
            ({"response_format": {"type": "json_schema", "json_schema": {"schema": ENDLESS}}},
             "response_format.json_schema.schema"),
            ({"tool_choice": "required",
              "tools": [{"type": "function", "function": {"name": "go", "parameters": ENDLESS}}]},
             "tools[0].function.parameters"),
            ({"guided_regex": "("}, "guided_regex"),
            ({"guided_grammar": 'start: "a" B'}, "guided_grammar"),
            ({"tool_choice": "required", "tools": [TOOL, BOGUS_TOOL]},
             "tools[1].function.parameters"),
            ({"top_logprobs": 3}, "top_logprobs"),
            ({"stop": ["a"] * 17}, "stop"),
            ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
            ({"logit_bias": {"x": 1}}, "logit_bias.x"),
            ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
            ({"max_completion_tokens": 3, "min_tokens": 4}, "min_tokens"),
            ({"thinking_budget": 5, "thinking_token_budget": 6}, "thinking_budget"),
            ({"include_reasoning": True, "reasoning": {"exclude": True}}, "reasoning.exclude"),
            ({"reasoning_effort": "some"}, "reasoning_effort"),
            ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning.effort"),
            ({"enable_thinking": True, "chat_template_kwargs": {"thinking": False}}, "chat_template_kwargs.thinking"),
            ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        )
    ),
    *(
        ("/v1/completions", fields, param)
        for fields, param in (
            ({"prompt": []}, "prompt"),
            ({"prompt": [[]]}, "prompt[0]"),
            ({"prompt": ["a", 1]}, "prompt"),
            ({"prompt": ["a"] * 129}, "prompt"),
            ({"prompt": ["a", "b"], "n": 100}, "n"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"logprobs": 21}, "logprobs"),
            ({"guided_choice": []}, "guided_choice"),
            ({"structured_outputs": {"json": BOGUS}}, "structured_outputs.json"),
        )
    ),
    *(
        ("/v1/responses", fields, param)
        for fields, param in (
            ({"input": []}, "input"),
            ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
            ({"input": [{"type": "function_call_output", "call_id": "a", "output": "x"}]}, "input[0].call_id"),
            ({"background": True}, "background"),
            ({"max_tokens": 4}, "max_tokens"),
            ({"previous_response_id": "resp_1"}, "previous_response_id"),
            ({"tools": [{"type": "web_search"}, {"type": "function", "name": "x y"}]}, "tools[1].name"),
            ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
            ({"text": {"format": {"type": "text", "schema": SCHEMA}}}, "text.format.schema"),
            ({"text": {"format": {"type": "json_schema", "name": "x", "schema": BOGUS}}}, "text.format.schema"),
        )
    ),
    *(
        ("/v1/messages", fields, param)
        for fields, param in (
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
            ({"messages": [*HELLO, {"role": "assistant", "content": "x"}]}, "messages[1].role"),
            (
                {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]},
                "messages[0].content[0].tool_use_id",
            ),
            ({"tool_choice": {"type": "any"}}, "tool_choice"),
            ({"stop_sequences": [""]}, "stop_sequences[0]"),
        )
    ),
    ("/v1/embeddings", {"input": ""}, "input"),
    ("/v1/embeddings", {"input": []}, "input"),
    ("/v1/embeddings", {"input": ["a"] * 2049}, "input"),
    ("/api/chat", {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ("/api/chat", {"messages": [], "keep_alive": 0}, "keep_alive"),
    ("/api/chat", {"think": "some"}, "think"),
    ("/api/chat", {"options": {"stop": [""]}}, "options.stop[0]"),
    ("/api/generate", {"prompt": "", "keep_alive": 0}, "keep_alive"),
    ("/api/generate", {"format": "xml"}, "format"),
    ("/api/generate", {"format": BOGUS}, "format"),
    ("/api/chat", {"format": BOGUS}, "format"),
    ("/api/generate", {"raw": True, "think": "some"}, "think"),
    ("/api/embed", {"input": []}, "input"),
    ("/api/embed", {"options": {"top_k": "x"}}, "options.top_k"),
    ("/api/embeddings", {"keep_alive": "x"}, "keep_alive"),
]  # fmt: skip


def no_formats() -> ModelFormats:
    return ModelFormats(None, None)


async def check(
    path: str, body: dict[str, Any], read_formats: ReadFormats = no_formats, *, strict: bool = False
) -> None:
    asker, grammars = Asker(ResponseStore(), ""), CheckedGrammars(validate)
    await check_readable(path, json.dumps(body).encode(), asker, grammars, read_formats, strict=strict)


def test_every_path_that_may_start_a_model_is_checked() -> None:
    assert ROUTES.keys() == NATIVE == RIGHT.keys()


@pytest.mark.parametrize(("path", "fields", "param"), WRONG)
async def test_what_no_model_could_answer_is_refused_as_by_its_route(
    door: Door, path: str, fields: dict[str, Any], param: str
) -> None:
    await check(path, RIGHT[path])
    body = {**RIGHT[path], **fields}
    with pytest.raises(ApiError) as refused:
        await check(path, body)
    assert (refused.value.status, refused.value.param) == (400, param)
    by_route = door.http.post(path, json=body)
    assert by_route.status_code == 400
    error = by_route.json()["error"]
    if not path.startswith("/api/"):
        assert (error["param"], error["code"]) == (param, refused.value.code)


async def test_fields_and_roles_that_some_model_knows_are_left_to_the_model() -> None:
    messages = [
        *HELLO,
        {"role": "latest_reminder", "content": "x"},
        {"role": "assistant", "content": "y", "prefix": True},
    ]
    await check("/v1/chat/completions", {"messages": messages})


@pytest.mark.parametrize(
    "given",
    [
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_schema", "schema": SCHEMA, "json_schema": {"schema": SCHEMA}},
        {"type": "json_object", "schema": None, "json_schema": None},
        {"type": "text", "schema": None, "json_schema": None},
    ],
)
async def test_a_form_that_is_said_twice_alike_or_in_short_is_no_contradiction(given: dict[str, Any]) -> None:
    await check("/v1/chat/completions", {"messages": HELLO, "response_format": given})


@pytest.mark.parametrize("schema", [ENDLESS, {"type": "object", "properties": {"a": BOGUS}}])
async def test_strict_tools_are_judged_where_the_model_could_be_bound_to_them(schema: dict[str, Any]) -> None:
    """As its route does: other formats leave the calls of a free answer free, whatever the schema."""
    function = {"name": "go", "parameters": schema, "strict": True}
    claude = {"name": "go", "input_schema": schema, "strict": True}
    asked: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/chat/completions", {"type": "function", "function": function}, "tools[1].function.parameters"),
        ("/api/chat", {"type": "function", "function": function}, "tools[1].function.parameters"),
        ("/v1/responses", {"type": "function", **function}, "tools[1].parameters"),
        ("/v1/messages", claude, "tools[1].input_schema"),
    ]
    for path, tool, param in asked:
        fine = {**tool, "name": "look"} if "name" in tool else {**tool, "function": {**function, "name": "look"}}
        fine = json.loads(json.dumps(fine).replace(json.dumps(schema), json.dumps(SCHEMA)))
        body = {**RIGHT[path], "tools": [fine, tool]}
        for formats in (None, ModelFormats(None, None), ModelFormats(FORMATS["llama3-json"], None)):
            await check(path, body, lambda formats=formats: formats)  # type: ignore[misc]
        with pytest.raises(ApiError) as refused:
            await check(path, body, lambda: ModelFormats(FORMATS["hermes"], None))
        assert (refused.value.status, refused.value.param) == (400, param)


async def test_an_unknown_field_is_refused_where_the_profile_wants_that() -> None:
    body = {**RIGHT["/v1/completions"], "frobnicate": 1}
    await check("/v1/completions", body)
    with pytest.raises(ApiError) as refused:
        await check("/v1/completions", body, strict=True)
    assert refused.value.param == "frobnicate"


async def test_special_tokens_that_some_model_has_are_left_to_the_model() -> None:
    await check("/v1/completions", {"prompt": "hello", "guided_grammar": 'start: <|think|> <[7]> "a"'})


async def test_grammars_are_tried_beside_other_requests() -> None:
    """In a thread, and no more than two at a time."""
    together = threading.Barrier(AT_A_TIME, timeout=20)
    trying, threads, most = set[int](), set[int](), 0

    def attempt(_grammar: str) -> None:
        nonlocal most
        trying.add(threading.get_ident())
        most = max(most, len(trying))
        threads.add(threading.get_ident())
        together.wait()
        trying.discard(threading.get_ident())

    grammars = CheckedGrammars(attempt)
    bodies = [json.dumps({"prompt": "hello", "guided_choice": [str(number)]}).encode() for number in range(6)]
    asker = Asker(ResponseStore(), "")
    checks = [check_readable("/v1/completions", body, asker, grammars, no_formats, strict=False) for body in bodies]
    await asyncio.gather(*checks)
    assert most == AT_A_TIME
    assert threading.get_ident() not in threads


async def test_a_kept_conversation_is_read_beside_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the request is that refers to it."""
    text = {"type": "input_text", "text": "hello"}
    message = {"type": "message", "id": "msg_1", "role": "user", "content": [text]}
    store = ResponseStore(most=4)
    store.keep("", StoredResponse({"id": "resp_1", "output": []}, [message]))
    readers = []
    get = store.get

    def noted(*asked: Any) -> StoredResponse:
        readers.append(threading.get_ident())
        return get(*asked)

    monkeypatch.setattr(store, "get", noted)
    body = json.dumps({"input": "hello", "previous_response_id": "resp_1"}).encode()
    await check_readable("/v1/responses", body, Asker(store, ""), CheckedGrammars(validate), no_formats, strict=False)
    assert readers
    assert threading.get_ident() not in readers


def test_nothing_is_swapped_for_such_a_request(home: Home) -> None:
    """Streamed or not, and though the profile that it names refuses more than the running one."""
    wrong: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "wizard", "content": "x"}]},
        "/v1/completions": {"prompt": "hello", "guided_json": BOGUS},
        "/v1/responses": {"input": []},
        "/v1/embeddings": {"input": ""},
        "/v1/messages": {"messages": HELLO, "max_tokens": 9, "tools": [
            {"name": "go", "strict": True, "input_schema": {"type": "object", "properties": {"a": ENDLESS, "b": BOGUS}}}
        ]},
    }  # fmt: skip
    with choosing_door(home, "other", settings={"tool-call-parser": "hermes"}) as door:
        for path, fields in wrong.items():
            for stream in (False, True):
                refused = door.http.post(path, json={**fields, "model": "other", "stream": stream})
                assert refused.status_code == 400, (path, refused.text)
        assert door.state()["launch"]["profile"] == "tiny"
    assert len(launches(home)) == 1
