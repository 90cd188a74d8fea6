"""The whole way: the official openai client, the front door, the core, a real checkpoint."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from appliance.home import Home
from tests.running import engine, fetch, wait_for
from tests.tiny import write_checkpoint

KEYS = ("first-key", "second-key")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("real") / "home"
    write_checkpoint(home / "models" / "tiny")
    profile = home / "profile.json"
    settings = {"max-num-seqs": 8, "prefix-cache-salt": "api-key"}
    profile.write_text(json.dumps({"schema": 1, "name": "tiny", "model": {"path": "tiny"}, **settings}))
    keys = [{"id": key, "name": key, "sha256": hashlib.sha256(key.encode()).hexdigest()} for key in KEYS]
    Home.at(home).create().api_keys.write_text(json.dumps({"required": False, "keys": keys}))
    with engine(home, "--profile", str(profile)) as (_, url):
        wait_for("the engine is ready", lambda: fetch(f"{url}/health")[0] == 200)
        yield url


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_streamed_and_whole_answers_are_the_same(client: openai.OpenAI) -> None:
    """Greedy: the same text, in pieces or not, whatever is sent beside it."""
    ask: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "grüße"}],
        "temperature": 0,
        "max_tokens": 40,
    }
    whole = client.chat.completions.create(**ask)
    chunks = client.chat.completions.create(**ask, stream=True)
    assert whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content


def test_anthropics_client_gets_the_same_answers(url: str, client: openai.OpenAI) -> None:
    """Greedy, whole and streamed, as OpenAI's does; the second time the prompt comes from the cache."""
    claude = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    said = "the same beginning " * 8
    ask: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": said}], "max_tokens": 40}
    theirs = client.chat.completions.create(**ask, temperature=0).choices[0].message.content
    greedy = {"temperature": 0}
    whole: Any = claude.messages.create(**ask, extra_body=greedy)
    with claude.messages.stream(**ask, extra_body=greedy) as stream:
        streamed: Any = stream.get_final_message()
    for message in (whole, streamed):
        assert "".join(block.text for block in message.content) == theirs
        assert (message.usage.cache_read_input_tokens or 0) > 100
    assert streamed.usage == whole.usage
    assert claude.messages.count_tokens(model="tiny", messages=ask["messages"]).input_tokens == (
        whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    )


def test_a_call_that_is_demanded_is_one(url: str) -> None:
    """Of the tool that is named, with arguments that fit its schema, whatever the model would rather say."""
    claude = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    schema = {
        "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False,
    }  # fmt: skip
    message: Any = claude.messages.create(
        model="tiny",
        max_tokens=400,  # JSON has room for white space
        extra_body={"temperature": 0},
        messages=[{"role": "user", "content": "x"}],
        tools=[{"name": "switch", "input_schema": schema}, {"name": "other", "input_schema": schema}],
        tool_choice={"type": "tool", "name": "switch"},
    )
    (call,) = message.content
    assert (message.stop_reason, call.name, list(call.input)) == ("tool_use", "switch", ["on"])
    assert isinstance(call.input["on"], bool)


def test_ollamas_client_gets_the_same_answers(url: str, client: openai.OpenAI) -> None:
    """Greedy, of a chat and of a raw prompt, whole and streamed."""
    local = ollama.Client(host=url)
    messages: Any = [{"role": "user", "content": "grüße"}]
    options = {"temperature": 0, "num_predict": 40}
    chat = client.chat.completions.create(model="tiny", messages=messages, temperature=0, max_tokens=40)
    whole = local.chat(model="tiny", messages=messages, options=options)
    parts = list(local.chat(model="tiny", messages=messages, options=options, stream=True))
    expected = chat.choices[0].message.content
    assert whole.message.content == expected
    assert "".join(part.message.content or "" for part in parts) == expected
    assert (parts[-1].prompt_eval_count, parts[-1].eval_count) == (whole.prompt_eval_count, whole.eval_count)
    completion = client.completions.create(model="tiny", prompt="once", temperature=0, max_tokens=40)
    assert local.generate(model="tiny", prompt="once", raw=True, options=options).response == completion.choices[0].text


def test_ollamas_format_is_kept(url: str) -> None:
    """Whatever the model would rather say."""
    schema = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    form = {**schema, "additionalProperties": False}
    answer = ollama.Client(host=url).generate(
        model="tiny", prompt="x", format=form, options={"num_predict": 400, "temperature": 0}
    )
    assert isinstance(json.loads(answer.response)["on"], bool)


def test_a_seed_repeats_an_answer_and_choices_differ(client: openai.OpenAI) -> None:
    """Drawn at random, but the same again with the same seed; and n answers are n answers."""
    first, second = (
        client.completions.create(model="tiny", prompt="once", max_tokens=20, seed=5, temperature=1, n=3)
        for _ in range(2)
    )
    assert [choice.text for choice in first.choices] == [choice.text for choice in second.choices]
    assert len({choice.text for choice in first.choices}) == 3


def test_token_ids_go_in_and_come_out(url: str) -> None:
    """The ids of an answer, sent back as a prompt, are answered as the text would be."""
    body = {"prompt": [5, 6, 7, 8], "max_tokens": 8, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    first = httpx.post(f"{url}/v1/completions", json=body, timeout=30).json()["choices"][0]
    assert len(first["token_ids"]) == 8
    longer = {**body, "prompt": [5, 6, 7, 8, *first["token_ids"][:4]], "max_tokens": 4}
    second = httpx.post(f"{url}/v1/completions", json=longer, timeout=30).json()["choices"][0]
    assert second["token_ids"] == first["token_ids"][4:]


def test_logprobs_are_of_the_tokens(client: openai.OpenAI) -> None:
    """Greedy takes the likeliest: each token's logprob is the best of its alternatives."""
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "x"}], temperature=0, max_tokens=10, logprobs=True,
        top_logprobs=5,
    )  # fmt: skip
    assert answer.choices[0].logprobs is not None
    for entry in answer.choices[0].logprobs.content or []:
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)
        assert entry.logprob <= 0


def test_a_prompt_seen_before_comes_from_the_cache(client: openai.OpenAI) -> None:
    """And the usage says so."""
    prompt = "the same long beginning " * 10
    usages = [client.completions.create(model="tiny", prompt=prompt, max_tokens=2).usage for _ in range(2)]
    assert usages[1] is not None
    assert usages[1].prompt_tokens_details is not None
    assert (usages[1].prompt_tokens_details.cached_tokens or 0) > 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_each_key_has_a_cache_of_its_own(url: str, path: str) -> None:
    """Where the profile asks for it: what one has sent is found again by nobody else, with another key or with none."""
    text = f"what only the first has asked at {path} " * 5
    asked = {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}

    def cached(key: str | None) -> int:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        answer = httpx.post(f"{url}{path}", json={**asked, "max_tokens": 2}, headers=headers, timeout=30)
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    first, second = KEYS
    assert cached(first) == 0
    assert cached(first) > 200
    assert cached(second) == 0
    assert cached(None) == 0


async def test_many_clients_at_once_some_of_whom_leave(url: str) -> None:
    """More requests than slots: each gets its own answer, and those who left hold nothing."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:

        async def ask(number: int) -> str:
            body = {"prompt": f"{number}: ", "max_tokens": 30, "temperature": 0, "stream": number % 2 == 0}
            text = (await http.post("/v1/completions", json=body)).text
            parts = [json.loads(line) for line in re.findall(r"^(?:data: )?(\{.*\})$", text, re.MULTILINE)]
            return "".join(part["choices"][0]["text"] for part in parts)

        async def leave(number: int) -> None:
            body = {"prompt": f"{number}: ", "max_tokens": 400, "stream": True, "ignore_eos": True}
            async with http.stream("POST", "/v1/completions", json=body) as response:
                await anext(response.aiter_lines())

        alone = [await ask(number) for number in range(0, 24, 5)]
        together, *_ = await asyncio.gather(
            asyncio.gather(*(ask(number) for number in range(24))), *(leave(number) for number in range(12))
        )
        assert together[::5] == alone

        async def load() -> int:
            return int((await http.get("/appliance/state")).json()["load"]["running"])

        async with asyncio.timeout(10):
            while await load():  # noqa: ASYNC110  the core says it once a second
                await asyncio.sleep(0.1)


def test_the_launch_recorded_its_self_test(url: str) -> None:
    """A real token was computed before `ready`, and its phases took time."""
    _, state = fetch(f"{url}/appliance/state")
    outcome = {phase["phase"]: phase.get("outcome") for phase in state["launch"]["phases"]}
    assert outcome["self-test"] == "done"
    assert outcome["weights"] == "done"
    assert state["launch"]["ready_after_s"] > 0


def test_an_answer_is_as_likely_in_a_prompt_as_it_was(url: str) -> None:
    """Evaluation suites score texts so."""
    body: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "return_token_ids": True, "logprobs": 0}
    first = httpx.post(f"{url}/v1/completions", json={**body, "prompt": [5, 6, 7]}, timeout=30).json()["choices"][0]
    ask = {**body, "prompt": [5, 6, 7, *first["token_ids"]], "max_tokens": 1, "echo": True}
    for _ in range(2):  # the second time, the prompt is cached
        second = httpx.post(f"{url}/v1/completions", json=ask, timeout=30).json()["choices"][0]["logprobs"]
        assert second["token_logprobs"][0] is None
        assert second["token_logprobs"][3:9] == pytest.approx(first["logprobs"]["token_logprobs"], abs=1e-3)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_bias_decides_what_is_sampled(client: openai.OpenAI, url: str, temperature: float) -> None:
    """By token id, in every API; the tokens of one answer are kept out of the next."""
    body: dict[str, Any] = {"max_tokens": 6, "temperature": temperature, "return_token_ids": True, "ignore_eos": True}
    first = httpx.post(f"{url}/v1/completions", json={**body, "prompt": "once"}, timeout=30).json()["choices"][0]
    unwanted = {str(token): -100 for token in first["token_ids"]}
    ask = {**body, "prompt": "once", "logit_bias": unwanted}
    second = httpx.post(f"{url}/v1/completions", json=ask, timeout=30).json()["choices"][0]
    assert not set(first["token_ids"]) & set(second["token_ids"])
    said: Any = [{"role": "user", "content": "once"}]
    chat = client.chat.completions.create(
        model="tiny", messages=said, max_tokens=6, temperature=temperature, logit_bias={"70": 100},
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    assert chat.choices[0].model_extra is not None
    assert chat.choices[0].model_extra["token_ids"] == [70] * 6
    asked = {"input": "once", "max_output_tokens": 6, "temperature": temperature, "logit_bias": {"70": 100}}
    response = httpx.post(f"{url}/v1/responses", json=asked, timeout=30).json()
    assert response["output"][0]["content"][0]["text"] == chat.choices[0].message.content
