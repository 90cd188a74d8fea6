"""Tool calls in the answers of /v1/chat/completions, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from appliance.home import Home
from tests.serving.talking_door import choice, frames, talking_door
from tests.supervisor.scripted import Door

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": [1, 2]}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
ANSWERS = [CALL, "It rains in Köln.", f"Let me see.\n{CALL}\n{OTHER}", "Just <tool_call>text</tool_call>."]
ONE, TEXT, TWO, MALFORMED = range(4)
ARGUMENTS = {"city": "Köln", "days": [1, 2]}

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How is the weather?"}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME: ChatCompletionToolParam = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER, TIME]


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    home = Home.at(tmp_path_factory.mktemp("tools") / "home").create()
    with talking_door(home, ANSWERS, **{"tool-call-parser": "hermes", "reasoning-parser": "none"}) as door:
        door.wait("ready")
        yield door


@pytest.fixture
def client(talking: Door) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{talking.url}/v1", api_key="none", max_retries=0)


def seen(door: Door, **body: Any) -> str:
    """The prompt that the template makes of a request."""
    body = {"messages": HELLO, "max_tokens": 1, "return_token_ids": True, **body}
    chat = door.http.post("/v1/chat/completions", json=body)
    assert chat.status_code == 200, chat.text
    echo = {"prompt": chat.json()["prompt_token_ids"], "max_tokens": 1, "echo": True, "seed": TEXT}
    return str(door.http.post("/v1/completions", json=echo).json()["choices"][0]["text"])


def test_a_conversation_with_the_openai_client(client: openai.OpenAI) -> None:
    """A call, its result sent back, and the answer to that."""
    messages = list(HELLO)
    first = client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS, seed=ONE).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.content is None
    assert first.message.tool_calls is not None
    (call,) = first.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == ARGUMENTS
    assert call.id.startswith("call_")
    messages.append(first.message.model_dump(exclude_none=True))  # type: ignore[arg-type]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "rain"})
    second = client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS, seed=TEXT).choices[0]
    assert second.finish_reason == "stop"
    assert second.message.content == ANSWERS[TEXT]
    assert second.message.tool_calls is None


def test_a_streamed_conversation_with_the_openai_client(client: openai.OpenAI) -> None:
    """The client's own accumulation gives the whole calls, beside the content before them."""
    messages = list(HELLO)
    with client.chat.completions.stream(model="tiny", messages=messages, tools=TOOLS, seed=TWO) as stream:
        first = stream.get_final_completion().choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.content == "Let me see."
    calls = first.message.tool_calls or []
    assert [call.function.name for call in calls] == ["get_weather", "get_time"]
    assert [json.loads(call.function.arguments) for call in calls] == [ARGUMENTS, {}]
    assert len({call.id for call in calls}) == 2
    messages.append(first.message.model_dump(exclude={"parsed"}, exclude_none=True))  # type: ignore[arg-type]
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "42"} for call in calls]
    with client.chat.completions.stream(model="tiny", messages=messages, tools=TOOLS, seed=TEXT) as stream:
        second = stream.get_final_completion().choices[0]
    assert second.message.content == ANSWERS[TEXT]


def test_the_deltas_of_a_call_have_openais_shape(talking: Door) -> None:
    """Id, type and name once, at the beginning; then pieces of the arguments, and nothing that says nothing."""
    chunks = [frame["choices"][0] for frame in frames(talking, messages=HELLO, tools=TOOLS, seed=TWO)]
    assert chunks[0]["delta"]["role"] == "assistant"
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["tool_calls"]
    for index, name in enumerate(("get_weather", "get_time")):
        parts = [part for chunk in chunks for part in chunk["delta"].get("tool_calls", ()) if part["index"] == index]
        first, *rest = parts
        assert set(first) == {"index", "id", "type", "function"}
        assert (first["type"], first["function"]["name"]) == ("function", name)
        assert all(set(part) == {"index", "function"} and set(part["function"]) == {"arguments"} for part in rest)
        arguments = "".join(part["function"]["arguments"] for part in parts)
        assert json.loads(arguments) == (ARGUMENTS if index == 0 else {})
    assert all(chunk["delta"] or chunk["finish_reason"] for chunk in chunks)


@pytest.mark.parametrize("streamed", [False, True])
def test_each_choice_has_its_own_calls(talking: Door, streamed: bool) -> None:
    """The n-th answer, read by itself."""
    body: dict[str, Any] = {"messages": HELLO, "tools": TOOLS, "seed": ONE, "n": 4}
    reasons: dict[int, str] = {}
    if streamed:
        chunks = [frame["choices"][0] for frame in frames(talking, **body)]
        reasons = {chunk["index"]: chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]}
    else:
        choices = talking.http.post("/v1/chat/completions", json=body).json()["choices"]
        reasons = {choice["index"]: choice["finish_reason"] for choice in choices}
        assert [len(choice["message"].get("tool_calls", ())) for choice in choices] == [1, 0, 2, 0]
        assert choices[MALFORMED]["message"]["content"] == ANSWERS[MALFORMED]
    assert reasons == {ONE: "tool_calls", TEXT: "stop", TWO: "tool_calls", MALFORMED: "stop"}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("limit", "reason"), [({"max_tokens": 70}, "length"), ({"stop": "days"}, "stop")])
def test_a_call_that_is_cut_short_is_not_offered_to_be_run(
    talking: Door, limit: dict[str, Any], reason: str, streamed: bool
) -> None:
    """What came of it is there, but the finish reason says that it is not complete."""
    body: dict[str, Any] = {"messages": HELLO, "tools": TOOLS, "seed": ONE, **limit}
    if streamed:
        chunks = [frame["choices"][0] for frame in frames(talking, **body)]
        parts = [part for chunk in chunks for part in chunk["delta"].get("tool_calls", ())]
        arguments, ended = "".join(part["function"]["arguments"] for part in parts), chunks[-1]["finish_reason"]
    else:
        answered = choice(talking, **body)
        (call,) = answered["message"]["tool_calls"]
        arguments, ended = call["function"]["arguments"], answered["finish_reason"]
    assert ended == reason
    assert arguments.startswith('{"city": "K')
    with pytest.raises(json.JSONDecodeError):
        json.loads(arguments)


def test_a_stop_string_after_a_call_leaves_it_complete(talking: Door) -> None:
    """Agents stop at the words that would follow."""
    answered = choice(talking, messages=HELLO, tools=TOOLS, seed=TWO, stop="get_time")
    assert answered["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in answered["message"]["tool_calls"]] == ["get_weather"]


@pytest.mark.parametrize("streamed", [False, True])
def test_one_call_where_parallel_ones_are_off(talking: Door, streamed: bool) -> None:
    """The answer ends where the second would begin."""
    body: dict[str, Any] = {"messages": HELLO, "tools": TOOLS, "seed": TWO, "parallel_tool_calls": False}
    if streamed:
        chunks = frames(talking, **body, stream_options={"include_usage": True})
        parts = [part for chunk in chunks[:-1] for part in chunk["choices"][0]["delta"].get("tool_calls", ())]
        indices, ended = {part["index"] for part in parts}, chunks[-2]["choices"][0]["finish_reason"]
        assert chunks[-1]["usage"]["completion_tokens"] < len(ANSWERS[TWO].encode())
    else:
        answered = choice(talking, **body)
        indices, ended = set(range(len(answered["message"]["tool_calls"]))), answered["finish_reason"]
    assert (indices, ended) == ({0}, "tool_calls")


@pytest.mark.parametrize("body", [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_to_call_a_call_is_text(talking: Door, body: dict[str, Any]) -> None:
    """Nothing is read out of it."""
    answered = choice(talking, messages=HELLO, seed=ONE, **body)
    assert answered["finish_reason"] == "stop"
    assert answered["message"]["content"] == CALL
    assert "tool_calls" not in answered["message"]


def test_tokens_are_told_also_where_they_add_no_text(talking: Door) -> None:
    """Their ids and logprobs are complete, streamed or not."""
    body: dict[str, Any] = {
        "messages": HELLO, "tools": TOOLS, "seed": TWO, "logprobs": True, "return_token_ids": True,
    }  # fmt: skip
    whole = choice(talking, **body)
    chunks = [frame["choices"][0] for frame in frames(talking, **body)]
    assert [token for chunk in chunks for token in chunk["token_ids"]] == whole["token_ids"]
    assert len(whole["token_ids"]) == len(ANSWERS[TWO].encode()) + 1
    assert sum(len(chunk["logprobs"]["content"]) for chunk in chunks) == len(whole["token_ids"])
    assert len(whole["logprobs"]["content"]) == len(whole["token_ids"])


def test_templates_get_tools_and_calls_as_they_expect_them(talking: Door) -> None:
    """Tools whole, whatever the choice; arguments as an object; a result with the name of its tool."""
    prompt = seen(talking, tools=[WEATHER, {**TIME, "cache_control": {}}], tool_choice="none")
    shown = json.loads(prompt[: prompt.index('{"role"')])
    assert shown[0] == WEATHER
    assert shown[1]["function"] == {
        "name": "get_time", "description": "", "parameters": {"type": "object", "properties": {}},
    }  # fmt: skip
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"city": "Rom", "n": 2}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "warm"}]},
    ]
    prompt = seen(talking, messages=messages)
    assert "city=Rom;n=2;" in prompt
    result = {"role": "tool", "content": "warm", "name": "f", "tool_call_id": "c"}
    assert json.dumps(result) in prompt


def test_what_the_template_does_not_show_is_named(door: Door) -> None:
    """The tools of a model that has never heard of tools; the effort of one that does not reason."""
    body = {"messages": HELLO, "max_tokens": 1, "tools": TOOLS, "reasoning_effort": "low"}
    response = door.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-ingot-ignored-fields"] == "tools, reasoning_effort"
