"""The OpenAI API as its clients see it, over a core whose words can be foretold."""

from __future__ import annotations

import functools
import json
import operator
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.supervisor.scripted import Door
from tests.supervisor.scripted_core import TEXT

WORDS = TEXT.decode() * 4
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(door: Door) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0)


def stream(door: Door, path: str, **body: Any) -> list[Any]:
    """The frames of a streamed answer; the last must be [DONE]."""
    with door.http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines]


def test_models_are_listed_and_shown(client: openai.OpenAI) -> None:
    """By the name that requests use; another name is told what there is."""
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.models.retrieve("org/other")


def test_a_completion(client: openai.OpenAI) -> None:
    """Text, finish reason and usage."""
    answer = client.completions.create(model="tiny", prompt="hello", max_tokens=9)
    (choice,) = answer.choices
    assert choice.text == WORDS[:9]
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 9, 14)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_a_completion_without_max_tokens_has_sixteen(client: openai.OpenAI) -> None:
    """As in OpenAI's API."""
    assert client.completions.create(model="tiny", prompt="x").choices[0].text == WORDS[:16]


def test_a_streamed_completion_is_the_same_in_pieces(client: openai.OpenAI) -> None:
    """Together the pieces are the whole, and the usage comes last if asked for."""
    chunks = list(
        client.completions.create(
            model="tiny", prompt="hello", max_tokens=30, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == WORDS[:30]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 30
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize(
    ("prompt", "answers"),
    [("a", 1), (["a", "b"], 2), ([8, 9], 1), ([[8, 9], [10]], 2)],
    ids=["text", "texts", "ids", "lists of ids"],
)
def test_prompts_have_four_forms(client: openai.OpenAI, prompt: Any, answers: int) -> None:
    """And each prompt is answered n times, in order."""
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=3, n=2)
    assert [choice.index for choice in answer.choices] == list(range(2 * answers))
    assert {choice.text for choice in answer.choices} == {"the"}
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6 * answers


def test_echo_gives_the_prompt_back_first(door: Door, client: openai.OpenAI) -> None:
    """Streamed or not, once for each answer."""
    answer = client.completions.create(model="tiny", prompt="say: ", max_tokens=3, echo=True, n=2)
    assert {choice.text for choice in answer.choices} == {"say: the"}
    frames = stream(door, "/v1/completions", prompt="say: ", max_tokens=3, echo=True)
    assert "".join(frame["choices"][0]["text"] for frame in frames) == "say: the"


@pytest.mark.parametrize("streamed", [False, True])
def test_an_echo_has_logprobs_too(door: Door, streamed: bool) -> None:
    """Of every token but the first, which nothing comes before; offsets go through to the end."""
    body = {"prompt": "say: ", "max_tokens": 3, "echo": True, "logprobs": 1, "return_token_ids": True}
    if streamed:
        parts = [frame["choices"][0] for frame in stream(door, "/v1/completions", **body)]
    else:
        parts = door.http.post("/v1/completions", json=body).json()["choices"]
    text = "".join(part["text"] for part in parts)
    told = {name: [each for part in parts for each in part["logprobs"][name]] for name in parts[0]["logprobs"]}
    prompt = len(parts[0]["prompt_token_ids"])
    assert text.startswith("say: ")
    assert told["token_logprobs"] == [None, *[-0.25] * (prompt - 1), *[-0.5] * 3]
    assert told["top_logprobs"][0] is None
    assert [len(top) for top in told["top_logprobs"][1:]] == [1] * (prompt - 1 + 3)
    ends = [*told["text_offset"][1:], len(text)]
    spans = [text[start:end] for start, end in zip(told["text_offset"], ends, strict=True)]
    assert [span for span in spans if span] == [
        token for token, span in zip(told["tokens"], spans, strict=True) if span
    ]


def test_logprobs_may_name_tokens_by_their_ids(door: Door) -> None:
    """Which tells them apart where several have the same text."""
    body = {"prompt": [70, 71], "max_tokens": 2, "echo": True, "logprobs": 1, "return_token_ids": True}
    choice = door.http.post("/v1/completions", json={**body, "return_tokens_as_token_ids": True}).json()["choices"][0]
    told = choice["logprobs"]
    assert told["tokens"] == [f"token_id:{token}" for token in (70, 71, *choice["token_ids"])]
    assert all(name.startswith("token_id:") for top in told["top_logprobs"][1:] for name in top)


@pytest.mark.parametrize("streamed", [False, True])
def test_an_echo_may_be_all_of_an_answer(door: Door, streamed: bool) -> None:
    """Evaluation suites score texts so: nothing is generated, or counted."""
    body = {"prompt": [70, 71, 72], "max_tokens": 0, "echo": True, "logprobs": 1, "return_token_ids": True, "n": 2}
    if streamed:
        frames = stream(door, "/v1/completions", **body, stream_options={"include_usage": True})
        usage, choices = frames[-1]["usage"], [frame["choices"][0] for frame in frames[:-1]]
    else:
        answer = door.http.post("/v1/completions", json=body).json()
        usage, choices = answer["usage"], answer["choices"]
    assert len(choices) == 2
    for choice in choices:
        assert (choice["finish_reason"], choice["token_ids"]) == ("length", [])
        assert choice["logprobs"]["token_logprobs"] == [None, -0.25, -0.25]
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"] != ""
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 0)
    assert door.http.post("/v1/completions", json={**body, "min_tokens": 1}).status_code == 400


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": "hello"}), ("/v1/chat/completions", {"messages": HELLO})]
)
def test_a_stream_may_tell_the_usage_all_along(door: Door, path: str, body: dict[str, Any]) -> None:
    """vLLM's option, which load generators send."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    frames = stream(door, path, **body, max_tokens=200, stream_options=options)  # a busy door merges some
    counts = [frame["usage"]["completion_tokens"] for frame in frames]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == 200
    assert len({frame["usage"]["prompt_tokens"] for frame in frames}) == 1


def test_a_chat(client: openai.OpenAI) -> None:
    """Message, finish reason and usage; without max_tokens it may go on to the end of the context."""
    answer = client.chat.completions.create(model="tiny", messages=HELLO, max_completion_tokens=9)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", WORDS[:9])
    assert choice.finish_reason == "length"
    long = client.chat.completions.create(model="tiny", messages=HELLO)
    assert long.usage is not None
    assert long.usage.total_tokens == 512


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    """The role once, at the beginning, for each of the answers; then only what is new."""
    chunks = list(client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=20, n=3, stream=True))
    for index in range(3):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert [choice.delta.role for choice in mine].count("assistant") == 1
        assert mine[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in mine) == WORDS[:20]
        assert [choice.finish_reason for choice in mine if choice.finish_reason] == ["length"]


def test_messages_may_come_in_parts_and_with_what_clients_add(door: Door) -> None:
    """Text parts, the developer role, and an answer sent back with its empty fields."""
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        {"role": "user", "content": "a", "name": "eve"},
        {"role": "assistant", "content": "b", "refusal": None, "tool_calls": None, "annotations": []},
        {"role": "user", "content": "c"},
    ]
    body = {"messages": messages, "max_tokens": 3, "return_token_ids": True}
    response = door.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    # tests/tiny.py: ids 3, 4, 5 are the roles system, user, assistant.
    assert [token for token in response.json()["prompt_token_ids"] if token in (3, 4, 5)] == [3, 4, 5, 4, 5]


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("quick", "the "),
        (["fox", "brown"], "the quick "),
        ("k br", "the quic"),
        ("zebra", WORDS[:24]),
        ([], WORDS[:24]),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_stop_strings_end_the_answer_before_them(door: Door, stop: Any, text: str, streamed: bool) -> None:
    """Wherever tokens begin and end; and no part of one is ever sent."""
    body = {"prompt": "x", "max_tokens": 24, "stop": stop}
    if streamed:
        frames = stream(door, "/v1/completions", **body)
        got = "".join(frame["choices"][0]["text"] for frame in frames)
        reason = frames[-1]["choices"][0]["finish_reason"]
    else:
        choice = door.http.post("/v1/completions", json=body).json()["choices"][0]
        got, reason = choice["text"], choice["finish_reason"]
    assert got == text
    assert reason == ("length" if text == WORDS[:24] else "stop")


def test_logprobs_in_both_forms(client: openai.OpenAI) -> None:
    """Each token with its text, its logprob and the likeliest alternatives."""
    chat = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2)
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content
    assert content is not None
    assert next((entry.token, entry.logprob, entry.bytes) for entry in content) == ("t", -0.5, [116])
    assert [top.logprob for top in content[0].top_logprobs] == [-0.5, -1.5]
    legacy = client.completions.create(model="tiny", prompt="x", max_tokens=3, logprobs=1).choices[0].logprobs
    assert legacy is not None
    assert legacy.tokens == ["t", "h", "e"]
    assert legacy.text_offset == [0, 1, 2]
    assert legacy.token_logprobs == [-0.5] * 3
    assert legacy.top_logprobs is not None
    assert list(legacy.top_logprobs[0]) == ["t"]
    assert client.completions.create(model="tiny", prompt="x", max_tokens=3).choices[0].logprobs is None


def test_token_ids_on_request(door: Door) -> None:
    """Of prompt and answer, in both APIs, streamed and not."""
    body: dict[str, Any] = {"prompt": [8, 9], "max_tokens": 3, "return_token_ids": True}
    whole = door.http.post("/v1/completions", json=body).json()["choices"][0]
    frames = [frame["choices"][0] for frame in stream(door, "/v1/completions", **body)]
    assert whole["prompt_token_ids"] == [8, 9] == frames[0]["prompt_token_ids"]
    assert functools.reduce(operator.iadd, (frame["token_ids"] for frame in frames), []) == whole["token_ids"]
    body = {"messages": HELLO, "max_tokens": 3, "return_token_ids": True}
    chat = door.http.post("/v1/chat/completions", json=body).json()
    first, *rest = stream(door, "/v1/chat/completions", **body)
    assert first["prompt_token_ids"] == chat["prompt_token_ids"]
    assert not any("prompt_token_ids" in frame for frame in rest)
    assert chat["choices"][0]["token_ids"] == whole["token_ids"]
    # Several tokens may have one text, so logprobs name theirs too.
    logprobs = door.http.post("/v1/chat/completions", json={**body, "logprobs": True, "top_logprobs": 2}).json()
    told = logprobs["choices"][0]["logprobs"]["content"]
    assert [entry["token_id"] for entry in told] == whole["token_ids"]
    assert [top["token_id"] for top in told[0]["top_logprobs"]] == [told[0]["token_id"], told[0]["token_id"] + 1]


def test_fields_without_effect_and_defaults_are_accepted(door: Door) -> None:
    """What asks for nothing special is no reason to refuse."""
    body = {
        "model": "tiny", "messages": HELLO, "max_tokens": 1, "user": "u", "metadata": {"a": "b"}, "store": False,
        "tools": None, "tool_choice": "none", "response_format": {"type": "text"}, "logit_bias": {}, "n": 1,
        "presence_penalty": 0, "frequency_penalty": 0.0, "stop": None, "seed": 7, "top_k": -1, "min_p": 0,
        "parallel_tool_calls": True, "modalities": ["text"], "service_tier": "auto", "logprobs": False,
    }  # fmt: skip
    response = door.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text


def test_every_answer_says_which_request_it_is_for(door: Door) -> None:
    """An id of the client's comes back; a missing or an odd one is replaced. The server's version is nobody's."""
    assert door.http.get("/health", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert len(door.http.get("/health", headers={"X-Request-Id": "a b"}).headers["x-request-id"]) == 32
    response = door.http.get("/nowhere")
    assert response.headers.get_list("server") == ["ingot"]
    assert len(response.headers["x-request-id"]) == 32
    assert "access-control-allow-origin" not in response.headers


def test_metrics_are_prometheus_text(door: Door) -> None:
    """Counters move with the requests, and the state is one of its values."""
    door.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 4})
    door.http.post("/v1/completions", json={"prompt": "x", "max_tokens": -4})
    response = door.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#"))
    assert values['ingot:engine_state{state="ready"}'] == "1.0"
    assert values['ingot:engine_state{state="failed"}'] == "0.0"
    assert float(values["ingot:generation_tokens_total"]) >= 4
    assert float(values['ingot:request_failure_total{status="400"}']) >= 1
    assert float(values["ingot:time_to_first_token_seconds_count"]) >= 1
    assert "ingot:num_requests_waiting" in values


def test_metrics_count_steps_by_how_they_were_computed(door: Door) -> None:
    """As the core's beats say."""
    deadline = time.monotonic() + 10
    while 'ingot:steps_total{how="graph"} 3.0' not in (text := door.http.get("/metrics").text):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)


def test_every_metric_is_documented(door: Door) -> None:
    """A name that nobody explains helps nobody."""
    documented = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    names = {line.split()[2] for line in door.http.get("/metrics").text.splitlines() if line.startswith("# TYPE")}
    assert names
    assert [name for name in sorted(names) if f"`{name}`" not in documented and f"`{name}{{" not in documented] == []
