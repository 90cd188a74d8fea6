"""Ollama's API with the official ollama client, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import ollama
import pytest

from appliance.home import Home
from appliance.serving.fields import IGNORED_HEADER
from appliance.serving.ollama import answers
from tests.serving.talking_door import talking_door
from tests.supervisor.scripted import Door

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": [1, 2]}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
ANSWERS = [
    "It rains in Köln.",
    f"Let me see.\n{CALL}\n{OTHER}",
    "<think>\nLet me think.\n</think>\n\nIt rains.",
    "<think>\nLet me think.\n</think>\n\n" + CALL,
]
TEXT, TWO_CALLS, THOUGHT, THOUGHT_AND_CALL = range(4)
ARGUMENTS: dict[str, Any] = {"city": "Köln", "days": [1, 2]}
HELLO = {"role": "user", "content": "How is the weather?"}
ODD_CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}


def get_weather(city: str, days: list[int]) -> str:
    """The weather of a place.

    Args:
      city: Its name.
      days: Which ones.
    """
    return f"rain in {city} for {len(days)} days"


def get_time() -> str:
    """The time."""
    return "noon"


TOOLS = [get_weather, get_time]


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    home = Home.at(tmp_path_factory.mktemp("ollama") / "home").create()
    with talking_door(home, ANSWERS, **{"tool-call-parser": "hermes", "reasoning-parser": "think"}) as door:
        door.wait("ready")
        yield door


@pytest.fixture
def client(talking: Door) -> ollama.Client:
    return ollama.Client(host=talking.url)


def chat(client: ollama.Client, seed: int, *, stream: bool, options: Any = None, **fields: Any) -> dict[str, Any]:
    """The last part of the answer, with the message put together from all parts."""
    fields = {"model": "tiny", "messages": [HELLO], "options": {"seed": seed, **(options or {})}, **fields}
    if not stream:
        return client.chat(**fields).model_dump()
    message: dict[str, Any] = {"content": "", "thinking": "", "tool_calls": []}
    for part in client.chat(**fields, stream=True):
        for name in message:
            message[name] += part.message.get(name) or type(message[name])()
        last = part.model_dump()
    assert last["done"] is True
    return {**last, "message": {name: value or None for name, value in message.items()}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_calls_and_their_results(client: ollama.Client, stream: bool) -> None:
    """Python functions as tools, whose results go back by name."""
    first = chat(client, TWO_CALLS, stream=stream, tools=TOOLS)
    assert first["done_reason"] == "stop"
    assert first["message"]["content"] == "Let me see."
    calls = [call["function"] for call in first["message"]["tool_calls"]]
    assert [call["name"] for call in calls] == ["get_weather", "get_time"]
    assert [call["arguments"] for call in calls] == [ARGUMENTS, {}]
    said = {"role": "assistant", "content": "Let me see.", "tool_calls": [{"function": call} for call in calls]}
    results = [
        {"role": "tool", "tool_name": "get_time", "content": get_time()},
        {"role": "tool", "content": get_weather(**ARGUMENTS)},
    ]
    second = chat(client, TEXT, stream=stream, tools=TOOLS, messages=[HELLO, said, *results])
    assert second["message"]["content"] == ANSWERS[TEXT]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("think", "thinking"), [(None, "Let me think."), (True, "Let me think."), (False, None)])
def test_thinking_is_apart(client: ollama.Client, think: bool | None, thinking: str | None, stream: bool) -> None:
    """And left out on demand."""
    seed = THOUGHT
    message = chat(client, seed, stream=stream, think=think)["message"]
    assert (message["thinking"], message["content"]) == (thinking, "It rains.")


def test_what_was_thought_goes_back_with_its_call(talking: Door) -> None:
    """The model sees it in the conversation, if its template shows it."""
    call = {"function": {"name": "get_time", "arguments": {"zone": "CET"}}}
    messages = [
        HELLO,
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_time", "content": "noon"},
    ]
    answer = talking.http.post("/api/chat", json={"messages": messages, "stream": False}).json()
    as_openai = [
        HELLO,
        {"role": "assistant", "content": "", "reasoning_content": "Hm.",
         "tool_calls": [{"id": "call_1", "type": "function", "function": {**call["function"]}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]  # fmt: skip
    assert answer["prompt_eval_count"] == talking.http.post("/tokenize", json={"messages": as_openai}).json()["count"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("options", "reason", "text", "count"),
    [
        ({"stop": [" in K"]}, "stop", "It rains", 13),
        ({"stop": " in K"}, "stop", "It rains", 13),
        ({"num_predict": 8}, "length", "It rains", 8),
        ({"num_predict": -1, "num_ctx": 1024, "num_gpu": 99}, "stop", ANSWERS[TEXT], 19),
        ({"num_predict": 100_000}, "stop", ANSWERS[TEXT], 19),
    ],
)
def test_options(
    client: ollama.Client, options: dict[str, Any], reason: str, text: str, count: int, stream: bool
) -> None:
    """More tokens than the context holds may be asked for; durations add up."""
    answer = chat(client, TEXT, stream=stream, options=options)
    assert (answer["done_reason"], answer["message"]["content"]) == (reason, text)
    assert answer["eval_count"] == count
    assert answer["prompt_eval_duration"] + answer["eval_duration"] == pytest.approx(answer["total_duration"], abs=2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_was_cut_off_is_not_offered(client: ollama.Client, stream: bool) -> None:
    """Clients run every call that they get."""
    answer = chat(client, TWO_CALLS, stream=stream, tools=TOOLS, options={"num_predict": 80})
    assert (answer["done_reason"], answer["message"]["tool_calls"]) == ("length", None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_completed(client: ollama.Client, stream: bool) -> None:
    """Through the template, as a chat's message is."""
    fields: dict[str, Any] = {"model": "tiny:latest", "prompt": "How?", "system": "Be brief.", "options": {"seed": 2}}
    answers = client.generate(**fields, stream=True) if stream else [client.generate(**fields)]
    parts = list(answers)
    assert "".join(part.response or "" for part in parts) == "It rains."
    assert "".join(part.thinking or "" for part in parts) == "Let me think."
    assert (parts[-1].model, parts[-1].done, parts[-1].done_reason) == ("tiny:latest", True, "stop")


def test_a_raw_prompt_goes_past_the_template(talking: Door) -> None:
    """What looks like reasoning or a call is text then, as the format is the client's."""
    body = {"prompt": "<|user|>How?", "raw": True, "stream": False, "options": {"seed": THOUGHT_AND_CALL}}
    answer = talking.http.post("/api/generate", json=body).json()
    assert answer["response"] == ANSWERS[THOUGHT_AND_CALL]
    counted = talking.http.post("/tokenize", json={"prompt": "<|user|>How?"}).json()["count"]
    assert answer["prompt_eval_count"] == counted


@pytest.mark.parametrize("seed", range(len(ANSWERS)))
@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_as_documented(talking: Door, seed: int, stream: bool) -> None:
    """Every line of them, and what describes the model; nothing is missing or beside it."""
    both = {"options": {"seed": seed}, "stream": stream}
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    chat = talking.http.post("/api/chat", json={"messages": [HELLO], "tools": tools, **both})
    generated = talking.http.post("/api/generate", json={"prompt": "x", **both})
    msgspec.json.Decoder(answers.OllamaChatAnswer).decode_lines(chat.content)
    msgspec.json.Decoder(answers.OllamaGenerateAnswer).decode_lines(generated.content)


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("POST", "/api/chat", answers.OllamaChatAnswer),
        ("POST", "/api/generate", answers.OllamaGenerateAnswer),
        ("POST", "/api/show", answers.OllamaShownModel),
        ("GET", "/api/tags", answers.OllamaModels),
        ("GET", "/api/ps", answers.OllamaRunningModels),
        ("GET", "/api/version", answers.OllamaVersion),
    ],
)
def test_what_describes_the_model_is_as_documented(talking: Door, method: str, path: str, answer: Any) -> None:
    """So is the answer to a request for nothing."""
    response = talking.http.request(method, path, content=b"{}" if method == "POST" else b"")
    msgspec.json.decode(response.content, type=answer)


def test_lines_of_json(talking: Door) -> None:
    """Streamed unless the client says otherwise; every line is a part, and the last one says so."""
    with talking.http.stream("POST", "/api/chat", json={"messages": [HELLO], "options": {"seed": TEXT}}) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        parts = [json.loads(line) for line in response.iter_lines()]
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert len(parts) >= 2
    assert {part["message"]["role"] for part in parts} == {"assistant"}


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_request_for_nothing_loads_the_model(talking: Door, path: str) -> None:
    """Which is loaded."""
    answer = talking.http.post(path, json={"model": "tiny", "keep_alive": "10m"}).json()
    assert (answer["done"], answer["done_reason"]) == (True, "load")
    for keep_alive in ("-1", "1h30m", "0.5s", ".5h", -1, 0.5, None):
        assert talking.http.post(path, json={"keep_alive": keep_alive}).status_code == 200
    assert talking.http.post(path, json={"messages" if path == "/api/chat" else "prompt": None}).status_code == 200
    for keep_alive in (0, 0.0, "0", "0s", "0m", "-0.0h", "0h0m", "soon", "", "5 m", "9" * 5000 + "x"):
        assert talking.http.post(path, json={"keep_alive": keep_alive}).status_code == 400, keep_alive
    ask = {"messages": [HELLO]} if path == "/api/chat" else {"prompt": "hi"}
    refused = talking.http.post(path, json={**ask, "keep_alive": "soon"})
    assert (refused.status_code, refused.json()["error"].partition(":")[0]) == (400, "keep_alive")
    for asked in (path, "/api/embed"):
        kept = talking.http.post(asked, json={**ask, "input": "hi", "keep_alive": 0, "stream": False})
        assert kept.status_code == 200
        assert "keep_alive" in kept.headers[IGNORED_HEADER]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_request_for_nothing_is_checked_as_any_other(talking: Door, path: str) -> None:
    for wrong in ({"format": "xml"}, {"options": {"temperature": 999}}):
        assert talking.http.post(path, json=wrong).status_code == 400
    answer = talking.http.post(path, json={"options": {"frobnicate": 1}})
    assert (answer.status_code, answer.headers["x-ingot-ignored-fields"]) == (200, "options.frobnicate")


def test_models_are_described(client: ollama.Client, talking: Door) -> None:
    """As editors list them, and look what they can do."""
    (model,) = client.list().models
    assert (model.model, model.details.family, model.details.quantization_level) == ("tiny:latest", "llama", "F32")
    assert model.size > 0
    (running,) = client.ps().models
    assert (running.digest, running.context_length, running.size_vram) == (model.digest, 8192, 0)
    shown = client.show(model.model)
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.modelinfo["llama.context_length"] == 8192
    assert shown.modelinfo["general.parameter_count"] > 10_000
    assert "messages" in shown.template
    version = [int(part) for part in talking.http.get("/api/version").json()["version"].split(".")]
    assert version >= [0, 6, 4], "VS Code asks for this"


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/api/chat", {"model": "llama3.2"}, 404, None),
        ("/api/show", {"model": "llama3.2"}, 404, None),
        ("/api/pull", {"model": "llama3.2"}, 404, None),
        ("/api/chat", {"messages": "x"}, 400, "messages"),
        ("/api/chat", {"messages": [{"role": "wizard"}]}, 400, "messages[0].role"),
        ("/api/chat", {"messages": [{**HELLO, "content": 3}]}, 400, "messages[0].content"),
        ("/api/chat", {"messages": [{**HELLO, "images": ["iVBOR"]}]}, 400, "messages[0].images"),
        ("/api/chat", {"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0].tool_name"),
        ("/api/chat", {"messages": [{"role": "tool", "tool_call_id": "x"}]}, 400, "messages[0].tool_call_id"),
        ("/api/chat", {"messages": [{**HELLO, "role": "assistant", "tool_calls": [{}]}]}, 400,
         "messages[0].tool_calls[0].function"),
        ("/api/chat", {"messages": [ODD_CALL]}, 400, "messages[0].tool_calls[0].function.arguments"),
        ("/api/chat", {"messages": [HELLO], "tools": [{"type": "function"}]}, 400, "tools[0].function"),
        ("/api/chat", {"messages": [HELLO], "format": "xml"}, 400, "format"),
        ("/api/chat", {"messages": [HELLO], "format": {"type": "nonsense"}}, 400, "format"),
        ("/api/chat", {"messages": [HELLO], "think": "hard"}, 400, "think"),
        ("/api/chat", {"messages": [HELLO], "stream": "yes"}, 400, "stream"),
        ("/api/chat", {"messages": [HELLO], "logprobs": True}, 400, "logprobs"),
        ("/api/chat", {"messages": [HELLO], "options": 3}, 400, "options"),
        ("/api/chat", {"messages": [HELLO], "options": {"temperature": "hot"}}, 400, "options.temperature"),
        ("/api/chat", {"messages": [HELLO], "options": {"repeat_penalty": 0}}, 400, "options.repeat_penalty"),
        ("/api/chat", {"messages": [HELLO], "options": {"num_gpu": "all"}}, 400, "options.num_gpu"),
        ("/api/chat", {"messages": [HELLO], "options": {"use_mmap": 1}}, 400, "options.use_mmap"),
        ("/api/chat", {"messages": [HELLO], "options": {"stop": ["x"] * 17}}, 400, "options.stop"),
        ("/api/chat", {"messages": [HELLO], "options": {"temprature": 1}}, 400, '"options.temprature"'),
        ("/api/chat", {"messages": [{**HELLO, "content": "x" * 40_000}]}, 400, "messages"),
        ("/api/generate", {"prompt": "x" * 40_000}, 400, "prompt"),
        ("/api/generate", {"prompt": "x" * 40_000, "raw": True}, 400, "prompt"),
        ("/api/generate", {"prompt": "x", "system": "x" * 40_000}, 400, "system"),
        ("/api/generate", {"prompt": 3}, 400, "prompt"),
        ("/api/generate", {"prompt": "x", "context": [1, 2]}, 400, "context"),
        ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, 400, "template"),
        ("/api/generate", {"prompt": "x", "images": ["iVBOR"]}, 400, "images"),
    ],
)  # fmt: skip
def test_what_is_refused(talking: Door, path: str, body: Any, status: int, param: str | None) -> None:
    """In Ollama's shape; the message begins with the path of the field."""
    response = talking.http.post(path, json=body)
    content = response.json()
    assert (response.status_code, set(content)) == (status, {"error"})
    assert param is None or content["error"].startswith((f"{param}:", f"{param} "))


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/show"])
def test_a_refusal_reaches_the_client(client: ollama.Client, talking: Door, path: str) -> None:
    """No JSON, or a page of another site."""
    assert set(talking.http.post(path, content=b"{").json()) == {"error"}
    response = talking.http.post(path, json={}, headers={"Origin": "https://app.example"})
    assert (response.status_code, set(response.json())) == (403, {"error"})
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat(model="other", messages=[HELLO])
    assert refused.value.status_code == 404


def test_options_without_effect_are_named(talking: Door) -> None:
    """Those that would change the answer; what says how to run a model is accepted without a word."""
    options = {"mirostat": 2, "num_thread": 8, "num_ctx": 1_000_000, "seed": TEXT}
    body = {"messages": [HELLO], "options": options, "frobnicate": 1, "keep_alive": -1, "stream": False}
    response = talking.http.post("/api/chat", json=body)
    assert response.status_code == 200, response.text
    ignored = set(response.headers[IGNORED_HEADER].split(", "))
    assert ignored == {"frobnicate", "options.mirostat", "options.num_ctx"}
