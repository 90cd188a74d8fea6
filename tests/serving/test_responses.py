"""/v1/responses with the real client: answers, tools, reasoning, structured output, and the events of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent

from appliance.home import Home
from appliance.serving.openapi.answers import ResponseObject
from tests.serving.talking_door import talking_door
from tests.supervisor.scripted import Door

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
ANSWERS = [
    "It rains.",
    CALL,
    f"Let me see.{CALL}{OTHER}",
    "<think>\nI look.\n</think>\n\nIt rains.",
    f"<think>I call.</think>{CALL}",
    '{"city": "Köln", "degrees": 24}',
]
TEXT, ONE, TWO, THOUGHT, CALLING, OBJECT = range(6)
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a place",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
TIME: dict[str, Any] = {"type": "function", "name": "get_time", "parameters": None, "strict": None}
EVENTS: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    home = Home.at(tmp_path_factory.mktemp("responses") / "home").create()
    with talking_door(home, ANSWERS, **{"tool-call-parser": "hermes", "reasoning-parser": "think"}) as door:
        door.wait("ready")
        yield door


@pytest.fixture
def client(talking: Door) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{talking.url}/v1", api_key="none", max_retries=0)


def answer(door: Door, seed: int, **body: Any) -> dict[str, Any]:
    response = door.http.post("/v1/responses", json={"input": "Hello", "seed": seed, **body})
    assert response.status_code == 200, response.text
    Response.model_validate(response.json())
    msgspec.convert(response.json(), ResponseObject)
    return dict(response.json())


def events(door: Door, seed: int, **body: Any) -> list[dict[str, Any]]:
    """Of a stream, each valid and in its place."""
    body = {"input": "Hello", "seed": seed, "stream": True, **body}
    with door.http.stream("POST", "/v1/responses", json=body) as response:
        assert response.status_code == 200, response.read()
        lines = [line for line in response.iter_lines() if line and not line.startswith(":")]
    found = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [line.removeprefix("event: ") for line in lines[::2]] == [event["type"] for event in found]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    for event in found:
        EVENTS.validate_python(event)
    return found


def kinds(found: list[dict[str, Any]]) -> list[str]:
    """The types of events in their order; deltas that follow each other are one."""
    types = [event["type"].removeprefix("response.") for event in found]
    return [kind for index, kind in enumerate(types) if not kind.endswith("delta") or kind != types[index - 1]]


ITEM = ["output_item.added", "content_part.added"]
MESSAGE = [*ITEM, "output_text.delta", "output_text.done", "content_part.done", "output_item.done"]
REASONING = [*ITEM, "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"]
FUNCTION = [
    "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
]  # fmt: skip


def test_a_text_with_the_openai_client(client: openai.OpenAI) -> None:
    """The whole answer, with the request's own values and the defaults of others."""
    answered = client.responses.create(
        model="tiny", input="Hello", instructions="Be brief.", metadata={"a": "b"}, extra_body={"seed": TEXT}
    )
    assert answered.output_text == "It rains."
    assert (answered.status, answered.error, answered.incomplete_details) == ("completed", None, None)
    assert answered.id.startswith("resp_")
    assert (answered.instructions, answered.metadata) == ("Be brief.", {"a": "b"})
    assert (answered.tool_choice, answered.parallel_tool_calls, answered.truncation) == ("auto", True, "disabled")
    assert answered.usage is not None
    assert answered.usage.output_tokens == len("It rains.") + 1
    assert answered.usage.total_tokens == answered.usage.input_tokens + answered.usage.output_tokens


def test_a_stream_with_the_openai_client(client: openai.OpenAI) -> None:
    """The client's own accumulation gives the whole answer."""
    tools: Any = [WEATHER, TIME]
    with client.responses.stream(model="tiny", input="Hello", extra_body={"seed": TWO}, tools=tools) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(texts) == final.output_text == "Let me see."
    calls = [item for item in final.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("get_weather", {"city": "Köln"}), ("get_time", {}),
    ]  # fmt: skip
    assert final.status == "completed"


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_tools(client: openai.OpenAI, talking: Door, stream: bool) -> None:
    """A call, its output sent back with the items before it as they came, and the answer to that."""
    sent: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    tools: Any = [WEATHER]

    def ask(seed: int) -> Response:
        if not stream:
            return client.responses.create(model="tiny", input=sent, tools=tools, extra_body={"seed": seed})
        with client.responses.stream(model="tiny", input=sent, tools=tools, extra_body={"seed": seed}) as opened:
            return opened.get_final_response()

    first = ask(CALLING)
    assert [item.type for item in first.output] == ["reasoning", "function_call"]
    sent += [item.model_dump(exclude_none=True) for item in first.output]
    call = first.output[1]
    assert call.type == "function_call"
    sent.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
    second = ask(TEXT)
    assert second.output_text == "It rains."
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output_is_parsed_by_the_client(client: openai.OpenAI, stream: bool) -> None:
    """In the client's own form of a schema."""
    given: dict[str, Any] = {"model": "tiny", "input": "Hello", "extra_body": {"seed": OBJECT}}
    if stream:
        with client.responses.stream(**given, text_format=Weather) as opened:
            parsed = opened.get_final_response()
    else:
        parsed = client.responses.parse(**given, text_format=Weather)
    assert parsed.output_parsed == Weather(city="Köln", degrees=24)


@pytest.mark.parametrize(
    ("seed", "items"),
    [
        (TEXT, [MESSAGE]),
        (ONE, [FUNCTION]),
        (TWO, [MESSAGE, FUNCTION, FUNCTION]),
        (THOUGHT, [REASONING, MESSAGE]),
        (CALLING, [REASONING, FUNCTION]),
    ],
)
def test_the_events_of_a_stream(talking: Door, seed: int, items: list[list[str]]) -> None:
    """Each item is opened, filled and closed before the next; the last event has the answer as it would be whole."""
    found = events(talking, seed, tools=[WEATHER, TIME])
    assert kinds(found) == ["created", "in_progress", *(kind for item in items for kind in item), "completed"]
    assert [event["output_index"] for event in found if event["type"] == "response.output_item.added"] == list(
        range(len(items))
    )
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    final = found[-1]["response"]
    assert final["output"] == done
    assert {event["item_id"] for event in found if "item_id" in event} == {item["id"] for item in done}
    assert {item["status"] for item in done} == {"completed"}
    whole = answer(talking, seed, tools=[WEATHER, TIME])
    assert [without_ids(item) for item in whole["output"]] == [without_ids(item) for item in done]
    assert whole["usage"]["output_tokens"] == final["usage"]["output_tokens"]
    assert whole["usage"]["output_tokens_details"] == final["usage"]["output_tokens_details"]


def without_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


def test_deltas_put_together_are_what_is_done(talking: Door) -> None:
    """Text, reasoning and arguments."""
    for seed in (THOUGHT, TWO):
        found = events(talking, seed, tools=[WEATHER, TIME])
        deltas: dict[str, str] = {}
        for event in found:
            if event["type"].endswith(".delta"):
                deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event["delta"]
            if event["type"].endswith(("text.done", "arguments.done")):
                assert deltas[event["item_id"]] == event.get("text", event.get("arguments"))


@pytest.mark.parametrize(("seed", "most", "kind"), [(TEXT, 5, "message"), (ONE, 60, "function_call")])
def test_an_answer_that_is_cut_short_is_incomplete(talking: Door, seed: int, most: int, kind: str) -> None:
    """Whole or streamed, with its last item."""
    limits = {"max_output_tokens": most, "tools": [WEATHER]}
    last = events(talking, seed, **limits)[-1]
    assert last["type"] == "response.incomplete"
    for response in (last["response"], answer(talking, seed, **limits)):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [(item["type"], item["status"]) for item in response["output"]] == [(kind, "incomplete")]
        assert response["usage"]["output_tokens"] == most


def test_a_call_that_a_stop_string_cuts_is_incomplete(talking: Door) -> None:
    """The answer has ended, but nobody should run it."""
    response = answer(talking, ONE, tools=[WEATHER], stop="Köln")
    assert response["status"] == "completed"
    assert [item["status"] for item in response["output"]] == ["incomplete"]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_of_the_text(talking: Door, stream: bool) -> None:
    """One for each of its tokens, with alternatives, and none for reasoning."""
    body: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    found = events(talking, THOUGHT, **body) if stream else []
    response = found[-1]["response"] if stream else answer(talking, THOUGHT, **body)
    reasoning, message = response["output"]
    logprobs = message["content"][0]["logprobs"]
    assert "logprobs" not in reasoning["content"][0]
    told = "".join(entry["token"] for entry in logprobs)
    assert "It rains." in told
    assert "I look" not in told
    assert all(len(entry["top_logprobs"]) == 2 for entry in logprobs)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_time"}]}, ["get_time"]),
        ("none", ["get_weather", "get_time"]),
    ],
)
def test_a_choice_of_tools_says_which_the_model_sees(talking: Door, choice: Any, names: list[str]) -> None:
    """A list of allowed ones hides the others."""
    tools = [WEATHER, TIME]
    of_names = [tool for tool in tools if tool["name"] in names]
    restricted = answer(talking, TEXT, tools=tools, tool_choice=choice)
    assert restricted["usage"]["input_tokens"] == answer(talking, TEXT, tools=of_names)["usage"]["input_tokens"]
    assert restricted["tool_choice"] == choice


def test_without_parallel_calls_there_is_one(talking: Door) -> None:
    """As in chat."""
    output = answer(talking, TWO, tools=[WEATHER, TIME], parallel_tool_calls=False)["output"]
    assert [item["type"] for item in output] == ["message", "function_call"]


def test_what_has_no_effect_is_named(talking: Door) -> None:
    """Fields within objects, items and tools, too."""
    response = talking.http.post(
        "/v1/responses",
        json={
            "input": [{"role": "user", "content": "Hello", "weight": 2}],
            "tools": [{"type": "web_search"}, {**WEATHER, "defer_loading": True}, {"type": "namespace", "name": "mcp"}],
            "text": {"verbosity": "low"},
            "reasoning": {"summary": "auto", "depth": 3},
            "include": ["reasoning.encrypted_content"],
            "store": True,
            "prompt_cache_key": "x",
            "seed": TEXT,
        },
    )
    assert response.status_code == 200, response.text
    assert set(response.headers["x-ingot-ignored-fields"].split(", ")) == {
        "reasoning.depth", "text.verbosity", "reasoning.summary", "input[].weight", "tools[].defer_loading",
        "tools[0]", "tools[2]",
    }  # fmt: skip
    assert response.json()["store"] is False
