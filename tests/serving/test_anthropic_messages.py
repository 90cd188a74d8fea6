"""/v1/messages with the official anthropic client, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import msgspec
import pytest
from anthropic.types import MessageParam, ToolParam

from appliance.home import Home
from appliance.serving.anthropic.answers import AnthropicMessage, AnthropicTokenCount
from appliance.serving.fields import IGNORED_HEADER
from tests.serving.talking_door import talking_door
from tests.supervisor.scripted import Door

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": [1, 2]}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
ANSWERS = [
    "It rains in Köln.",
    f"Let me see.\n{CALL}\n{OTHER}",
    "<think>\nLet me think.\n</think>\n\nIt rains.",
    f"Let me think.\n</think>\n\n{CALL}",
]
TEXT, TWO_CALLS, THOUGHT, THOUGHT_AND_CALL = range(4)
ARGUMENTS = {"city": "Köln", "days": [1, 2]}

HELLO: list[MessageParam] = [{"role": "user", "content": "How is the weather?"}]
WEATHER: ToolParam = {
    "name": "get_weather",
    "description": "The weather of a place",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TIME: ToolParam = {"name": "get_time", "input_schema": {"type": "object"}}
TOOLS = [WEATHER, TIME]
ADAPTIVE: Any = {"type": "adaptive"}


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    home = Home.at(tmp_path_factory.mktemp("messages") / "home").create()
    with talking_door(home, ANSWERS, **{"tool-call-parser": "hermes", "reasoning-parser": "think"}) as door:
        door.wait("ready")
        yield door


@pytest.fixture
def client(talking: Door) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=talking.url, api_key="none", max_retries=0)


def ask(client: anthropic.Anthropic, seed: int, *, stream: bool, **fields: Any) -> Any:
    """The message, as the client puts it together."""
    fields = {"model": "tiny", "max_tokens": 1000, "messages": HELLO, "extra_body": {"seed": seed}, **fields}
    if not stream:
        return client.messages.create(**fields)
    with client.messages.stream(**fields) as events:
        return events.get_final_message()


def events(door: Door, **body: Any) -> list[dict[str, Any]]:
    """Of a stream, as they come; the name of each is its type."""
    body = {"max_tokens": 1000, "messages": HELLO, **body, "stream": True}
    with door.http.stream("POST", "/v1/messages", json=body) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        blocks = response.read().decode().removesuffix("\n\n").split("\n\n")
    read = []
    for block in blocks:
        name, data = block.split("\n")
        content = json.loads(data[6:])
        assert name == f"event: {content['type']}"
        read.append(content)
    return read


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_calls_and_their_results(client: anthropic.Anthropic, stream: bool) -> None:
    """What the client got goes back as it came, with a result for each call."""
    first = ask(client, TWO_CALLS, stream=stream, tools=TOOLS, system="Be brief.")
    assert first.stop_reason == "tool_use"
    assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
    text, weather, time = first.content
    assert (text.text, weather.name, weather.input) == ("Let me see.", "get_weather", ARGUMENTS)
    assert (time.name, time.input) == ("get_time", {})
    assert weather.id != time.id
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"} for call in (weather, time)]
    messages = [*HELLO, first.to_param(), {"role": "user", "content": results}]
    second = ask(client, TEXT, stream=stream, tools=TOOLS, system="Be brief.", messages=messages)
    assert [block.model_dump()["text"] for block in second.content] == [ANSWERS[TEXT]]
    assert (second.stop_reason, second.stop_sequence, second.role, second.model) == (
        "end_turn", None, "assistant", "tiny",
    )  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_a_block_of_its_own(client: anthropic.Anthropic, stream: bool) -> None:
    """It comes first, and goes back with the call that it led to."""
    first = ask(client, THOUGHT_AND_CALL, stream=stream, tools=TOOLS, thinking=ADAPTIVE)
    thinking, call = first.content
    assert (thinking.type, thinking.thinking, call.type) == ("thinking", "Let me think.", "tool_use")
    assert thinking.signature
    assert first.usage.output_tokens_details.thinking_tokens >= len("Let me think.")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
    messages = [*HELLO, first.to_param(), {"role": "user", "content": [result]}]
    second = ask(client, TEXT, stream=stream, tools=TOOLS, messages=messages)
    assert second.content[0].text == ANSWERS[TEXT]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "thinking", [{}, {"thinking": {"type": "disabled"}}, {"thinking": {"type": "adaptive", "display": "omitted"}}]
)
def test_thinking_that_nobody_asked_for_is_not_shown(
    client: anthropic.Anthropic, thinking: dict[str, Any], stream: bool
) -> None:
    """Many a program reads `content[0].text`."""
    message = ask(client, THOUGHT, stream=stream, **thinking)
    assert [block.model_dump()["text"] for block in message.content] == ["It rains."]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "reason", "sequence", "text"),
    [
        ({"stop_sequences": ["Paris", " in K"]}, "stop_sequence", " in K", "It rains"),
        ({"max_tokens": 8}, "max_tokens", None, "It rains"),
        ({"max_tokens": 20_000}, "end_turn", None, ANSWERS[TEXT]),
    ],
)
def test_why_an_answer_ended(
    client: anthropic.Anthropic, fields: dict[str, Any], reason: str, sequence: str | None, text: str, stream: bool
) -> None:
    """A stop sequence is named. More tokens than the context holds may be asked for, as agents do."""
    message = ask(client, TEXT, stream=stream, **fields)
    assert (message.stop_reason, message.stop_sequence, message.content[0].text) == (reason, sequence, text)


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_of_the_context_is_told_apart(client: anthropic.Anthropic, stream: bool) -> None:
    """Without a number for its answer the scripted model goes on without end."""
    long: list[MessageParam] = [{"role": "user", "content": "x" * 8000}]
    message = ask(client, TEXT, stream=stream, messages=long, max_tokens=20_000, extra_body={})
    assert message.stop_reason == "model_context_window_exceeded"
    assert message.usage.output_tokens < 192


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_may_be_demanded_named_or_forbidden(client: anthropic.Anthropic, stream: bool) -> None:
    """With `none`, what looks like a call is text; and one call may be all that is wanted."""
    none = ask(client, TWO_CALLS, stream=stream, tools=TOOLS, tool_choice={"type": "none"})
    assert [block.type for block in none.content] == ["text"]
    one: Any = {"type": "auto", "disable_parallel_tool_use": True}
    single = ask(client, TWO_CALLS, stream=stream, tools=TOOLS, tool_choice=one)
    assert [block.type for block in single.content] == ["text", "tool_use"]


def test_the_events_of_a_stream(talking: Door) -> None:
    """Blocks one after the other, counted from 0; usage with the start and with the end."""
    read = events(talking, tools=TOOLS, thinking=ADAPTIVE, seed=THOUGHT_AND_CALL)
    kinds = [event["type"] for event in read if event["type"] != "content_block_delta"]
    block = ["content_block_start", "content_block_stop"]
    assert kinds == ["message_start", *block, *block, "message_delta", "message_stop"]
    begun = read[0]["message"]
    assert (begun["content"], begun["stop_reason"], begun["usage"]["output_tokens"] > 0) == ([], None, True)
    deltas = [event["delta"]["type"] for event in read if event["type"] == "content_block_delta"]
    assert list(dict.fromkeys(deltas)) == ["thinking_delta", "signature_delta", "input_json_delta"]
    assert [event["index"] for event in read if event["type"] == "content_block_start"] == [0, 1]
    ended = read[-2]
    assert ended["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert ended["usage"]["input_tokens"] == begun["usage"]["input_tokens"]
    assert ended["usage"]["output_tokens"] == len(ANSWERS[THOUGHT_AND_CALL].encode()) + 1


@pytest.mark.parametrize("seed", range(len(ANSWERS)))
def test_whole_answers_are_as_documented(talking: Door, seed: int) -> None:
    """Nothing is missing or beside it."""
    body = {"messages": HELLO, "max_tokens": 1000, "tools": TOOLS, "thinking": ADAPTIVE, "seed": seed}
    msgspec.json.decode(talking.http.post("/v1/messages", json=body).content, type=AnthropicMessage)
    del body["max_tokens"]
    counted = talking.http.post("/v1/messages/count_tokens", json=body)
    msgspec.json.decode(counted.content, type=AnthropicTokenCount)


def test_counted_tokens_are_those_that_an_answer_is_charged(client: anthropic.Anthropic) -> None:
    """With the system's prompt and the tools; and of prompts that no context holds."""
    fields: dict[str, Any] = {"model": "tiny", "messages": HELLO, "system": "Be brief.", "tools": TOOLS}
    counted = client.messages.count_tokens(**fields).input_tokens
    usage = ask(client, TEXT, stream=False, **fields).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens
    long: list[MessageParam] = [{"role": "user", "content": "x" * 10_000}]
    assert client.messages.count_tokens(model="tiny", messages=long).input_tokens > 10_000


def test_the_beta_api_is_the_same(client: anthropic.Anthropic) -> None:
    """Claude Code uses it: with a query, headers and fields of its own."""
    message = client.beta.messages.create(
        model="tiny",
        max_tokens=100,
        messages=[{"role": "user", "content": "hello"}],
        betas=["interleaved-thinking-2025-05-14"],
        context_management={"edits": []},
        metadata={"user_id": "u"},
        extra_body={"seed": TEXT},
    )
    assert message.content[0].model_dump()["text"] == ANSWERS[TEXT]


def test_what_claude_code_sends(talking: Door) -> None:
    """The fields of its first request (2.1.197), each shortened: all have a meaning here, or need none."""
    cached = {"type": "ephemeral"}
    body: dict[str, Any] = {
        "model": "tiny",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>...</system-reminder>"},
                                         {"type": "text", "text": "What does note.txt say?", "cache_control": cached}]},
            {"role": "system", "content": "Available agent types for the Agent tool: ..."},
        ],
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.707; cch=00000;"},
                   {"type": "text", "text": "You are a Claude agent.", "cache_control": cached}],
        "tools": [{"name": "Read", "description": "Reads a file", "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "properties": {"file_path": {"type": "string"}}, "required": ["file_path"]}}],
        "metadata": {"user_id": "{}"},
        "max_tokens": 32_000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
        "seed": THOUGHT_AND_CALL,
    }  # fmt: skip
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,effort-2025-11-24"}
    response = talking.http.post("/v1/messages?beta=true", json=body, headers=headers)
    assert response.status_code == 200, response.text
    assert IGNORED_HEADER not in response.headers
    assert "tool_use" in response.text


def test_a_schema_for_the_answer(client: anthropic.Anthropic) -> None:
    """It reaches the engine as a grammar; one that is none is named by its path."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    config: Any = {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    assert ask(client, TEXT, stream=False, output_config=config).content
    config = {"format": {"type": "json_schema", "schema": {"type": "nonsense"}}}
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(client, TEXT, stream=False, output_config=config)
    assert refused.value.response.json()["error"]["param"] == "output_config.format.schema"


def test_models_are_listed_for_the_client(client: anthropic.Anthropic) -> None:
    """In its own form, as it names the version of its API."""
    (model,) = client.models.list()
    assert (model.id, model.type, model.max_input_tokens) == ("tiny", "model", 8192)
    assert client.models.retrieve("tiny").created_at == model.created_at
    with pytest.raises(anthropic.NotFoundError) as refused:
        client.models.retrieve("claude-opus-4-5")
    assert refused.value.response.json()["error"]["type"] == "not_found_error"
