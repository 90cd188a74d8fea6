"""Ollama's API while the engine is vLLM: its requests reach vLLM as OpenAI's, and vLLM's answers the client as
Ollama's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from appliance.serving.ollama import answers
from tests.running import wait_for
from tests.vllm.real import PROFILE, Engine, front_door
from tests.vllm.stand_in import install

CALL = {"index": 0, "id": "call_9", "type": "function", "function": {"name": "look", "arguments": ""}}
CHAT_STREAM = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"reasoning": "Hm"}}]},
    {"choices": [{"index": 0, "delta": {"content": "Hello"}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [CALL]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"at": '}}]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '"sea"}'}}]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}},
]
TEXT_STREAM = [
    {"choices": [{"index": 0, "text": " one"}]},
    {"choices": [{"index": 0, "text": " two", "finish_reason": "length"}]},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
]
STREAMS = {"/v1/chat/completions": CHAT_STREAM, "/v1/completions": TEXT_STREAM}
MESSAGES = [{"role": "user", "content": "Hello"}]


def start(folder: Path, program: Path, **behaviour: Any) -> Any:
    settings = {"extra-args": {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}}
    return front_door(folder, {**PROFILE, "vllm": settings}, str(program), FAKE_VLLM=json.dumps(behaviour))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("stand-in"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Iterator[Engine]:
    with start(tmp_path_factory.mktemp("door"), program, streams=STREAMS) as engine:
        engine.wait("ready", timeout_s=60)
        yield engine


def lines(engine: Engine, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = httpx.post(f"{engine.url}{path}", json={"model": "real", **body}, timeout=20)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson"), answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def whole(engine: Engine, path: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{engine.url}{path}", json={"model": "real", "stream": False, **body}, timeout=20)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def asked(engine: Engine, path: str, holds: str) -> dict[str, Any]:
    """What vLLM was asked on this path: the request that holds this."""

    def find() -> dict[str, Any] | None:
        logged = [line for line in engine.log().splitlines() if f"{path} {{" in line and holds in line]
        return json.loads(logged[-1].partition(f"{path} ")[2]) if logged else None

    return wait_for("the request in the log", find, 10)


def test_a_chat_streams_thinking_words_and_complete_calls(engine: Engine) -> None:
    parts = lines(engine, "/api/chat", messages=MESSAGES)
    for part in parts:
        msgspec.convert(part, answers.OllamaChatAnswer)
    assert [part["message"].get("thinking") for part in parts if part["message"].get("thinking")] == ["Hm"]
    assert "".join(part["message"]["content"] for part in parts) == "Hello"
    calls = [call for part in parts for call in part["message"].get("tool_calls", ())]
    assert calls == [{"function": {"index": 0, "name": "look", "arguments": {"at": "sea"}}}]
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (parts[-1]["done_reason"], parts[-1]["prompt_eval_count"], parts[-1]["eval_count"]) == ("stop", 7, 5)


def test_a_whole_chat_is_what_its_stream_says(engine: Engine) -> None:
    told = whole(engine, "/api/chat", messages=MESSAGES)
    msgspec.convert(told, answers.OllamaChatAnswer)
    assert (told["message"]["content"], told["message"]["thinking"]) == ("Hello", "Hm")
    assert told["message"]["tool_calls"][0]["function"]["arguments"] == {"at": "sea"}
    assert (told["done"], told["done_reason"], told["eval_count"]) == (True, "stop", 5)
    assert "thinking" not in whole(engine, "/api/chat", messages=MESSAGES, think=False)["message"]


def test_messages_tools_format_and_options_reach_vllm_as_it_names_them(engine: Engine) -> None:
    call = {"function": {"name": "look", "arguments": {"at": "sea"}}}
    messages = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "blue"}]
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    options = {"num_predict": 9, "temperature": 0.5, "top_k": 3, "repeat_penalty": 1.2, "stop": ["x"], "seed": 4}
    schema = {"type": "object", "properties": {}}
    whole(engine, "/api/chat", messages=messages, tools=[tool], think=True, format=schema, options=options)
    told = asked(engine, "/v1/chat/completions", '"seed": 4')
    assert [message["role"] for message in told["messages"]] == ["user", "assistant", "tool"]
    sent = told["messages"][1]["tool_calls"][0]
    assert (json.loads(sent["function"]["arguments"]), sent["id"]) == (
        {"at": "sea"},
        told["messages"][2]["tool_call_id"],
    )
    assert (told["tools"], told["chat_template_kwargs"]) == ([tool], {"enable_thinking": True})
    assert told["response_format"]["json_schema"]["schema"] == schema
    assert told["response_format"]["json_schema"]["name"]
    wanted = {"max_tokens": 9, "temperature": 0.5, "top_k": 3, "repetition_penalty": 1.2, "stop": ["x"], "seed": 4}
    assert {name: told[name] for name in wanted} == wanted
    assert (told["model"], told["stream"], told["stream_options"]) == ("real", True, {"include_usage": True})


def test_an_answer_longer_than_the_context_is_left_to_vllm(engine: Engine) -> None:
    """Which refuses to be asked for more than there is room for."""
    whole(engine, "/api/chat", messages=MESSAGES, options={"num_predict": 100_000, "seed": 5})
    assert "max_tokens" not in asked(engine, "/v1/chat/completions", '"seed": 5')


def test_a_prompt_becomes_a_message_or_stays_as_it_is(engine: Engine) -> None:
    told = whole(engine, "/api/generate", prompt="Hi", system="Be kind")
    msgspec.convert(told, answers.OllamaGenerateAnswer)
    assert told["response"] == "Hello"
    assert asked(engine, "/v1/chat/completions", "Be kind")["messages"] == [
        {"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi"},
    ]  # fmt: skip
    parts = lines(engine, "/api/generate", prompt="Hi", raw=True, format="json")
    assert "".join(part["response"] for part in parts) == " one two"
    assert (parts[-1]["done_reason"], parts[-1]["eval_count"]) == ("length", 2)
    told = asked(engine, "/v1/completions", '"Hi"')
    assert (told["prompt"], told["max_tokens"], told["response_format"]) == ("Hi", 478, {"type": "json_object"})


def test_the_model_is_listed_and_described(engine: Engine) -> None:
    (listed,) = httpx.get(f"{engine.url}/api/tags").json()["models"]
    msgspec.convert(listed, answers.OllamaModel)
    (running,) = httpx.get(f"{engine.url}/api/ps").json()["models"]
    msgspec.convert(running, answers.OllamaRunningModel)
    assert (listed["name"], running["context_length"]) == ("real:latest", 480)
    shown = httpx.post(f"{engine.url}/api/show", json={"model": "real"}).json()
    msgspec.convert(shown, answers.OllamaShownModel)
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == 480
    assert shown["capabilities"] == ["completion", "tools"]


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/api/chat", {"messages": MESSAGES, "model": "other"}, 404, "other"),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aa"]}]}, 400, "messages[0].images"),
        ("/api/chat", {"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role"),
        ("/api/chat", {"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0].tool_name"),
        ("/api/chat", {"messages": MESSAGES, "options": {"temperature": "hot"}}, 400, "options.temperature"),
        ("/api/chat", {"messages": MESSAGES, "keep_alive": "soon"}, 400, "keep_alive"),
        ("/api/generate", {"prompt": "x", "suffix": "y"}, 400, "suffix"),
        ("/api/embed", {"input": "x"}, 404, "/v1/embeddings"),
    ],
)
def test_what_is_wrong_is_told_in_ollamas_shape(
    engine: Engine, path: str, body: dict[str, Any], status: int, word: str
) -> None:
    """The last is of a model that vLLM has no embeddings with."""
    answer = httpx.post(f"{engine.url}{path}", json={"model": "real", **body}, timeout=20)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert word in answer.json()["error"]


def test_embeddings_come_in_the_order_of_their_texts(tmp_path: Path, program: Path) -> None:
    data = [{"index": 1, "embedding": [0.0, 1.0]}, {"index": 0, "embedding": [1.0, 0.0]}]
    told = {"/v1/embeddings": {"data": data, "usage": {"prompt_tokens": 3}}}
    with start(tmp_path, program, only=told) as engine:
        engine.wait("ready", timeout_s=60)
        answer = whole(engine, "/api/embed", input=["a", "b"], dimensions=2, cache_salt="mine")
        assert answer["embeddings"] == [[1.0, 0.0], [0.0, 1.0]]
        assert answer["prompt_eval_count"] == 3
        asked_for = asked(engine, "/v1/embeddings", '"mine"')
        wanted = {"input": ["a", "b"], "truncate_prompt_tokens": -1, "dimensions": 2, "cache_salt": "mine"}
        assert {name: asked_for[name] for name in wanted} == wanted


def test_an_error_within_a_stream_ends_it_in_ollamas_shape(tmp_path: Path, program: Path) -> None:
    broken = [TEXT_STREAM[0], {"error": {"message": "no memory", "type": "InternalServerError", "code": 500}}]
    with start(tmp_path, program, streams={"/v1/completions": broken}) as engine:
        engine.wait("ready", timeout_s=60)
        parts = lines(engine, "/api/generate", prompt="Hi", raw=True)
        assert parts[-1] == {"error": "no memory"}
        body = {"model": "real", "prompt": "Hi", "raw": True, "stream": False}
        answer = httpx.post(f"{engine.url}/api/generate", json=body, timeout=20)
        assert (answer.status_code, answer.json()) == (500, {"error": "no memory"})
