"""Structured output over HTTP, with a real model: every spelling of it, enforced calls, and what is refused."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from appliance.serving.structured import MAX_CHOICES
from tests.running import engine, fetch, wait_for
from tests.serving.talking_door import TEMPLATE
from tests.tiny import write_checkpoint

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "degrees": {"type": "integer", "minimum": -50, "maximum": 50},
        "kind": {"enum": ["sun", "rain"]},
        "hours": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 23}, "maxItems": 3},
    },
    "required": ["city", "degrees", "kind", "hours"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": WEATHER | {"title": name}}}
    for name in ("look", "listen")
]
BOMB: dict[str, Any] = {"type": "string"}
for _ in range(7):  # each level four times as large as the one inside
    BOMB = {"anyOf": [{"type": "object", "properties": {"a": BOMB, "b": BOMB}}, {"items": [BOMB, BOMB]}]}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("structured") / "home"
    write_checkpoint(home / "models" / "tiny")
    profile = home / "profile.json"
    named = {"schema": 1, "name": "tiny", "model": {"path": "tiny"}, "max-num-seqs": 8}
    profile.write_text(json.dumps(named))
    with engine(home, "--profile", str(profile)) as (_, url):
        wait_for("the engine is ready", lambda: fetch(f"{url}/health")[0] == 200)
        yield url


@pytest.fixture(scope="module")
def strict_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a model whose tool calls have a format."""
    home = tmp_path_factory.mktemp("strict") / "home"
    folder = write_checkpoint(home / "models" / "tiny", max_position_embeddings=8192)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    profile = home / "profile.json"
    named = {"schema": 1, "name": "tiny", "model": {"path": "tiny"}, "tool-call-parser": "hermes"}
    profile.write_text(json.dumps(named))
    with engine(home, "--profile", str(profile)) as (_, url):
        wait_for("the engine is ready", lambda: fetch(f"{url}/health")[0] == 200)
        yield url


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def chat(url: str, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 1.0, "seed": 3, **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def content(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    return str(choice["message"]["content"])


def is_weather(value: Any) -> bool:
    return set(value) == {"city", "degrees", "kind", "hours"} and -50 <= value["degrees"] <= 50


def test_a_schema_through_the_official_client(client: openai.OpenAI) -> None:
    """Whole and streamed, and each of several answers."""
    form: Any = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}
    ask: dict[str, Any] = {
        "model": "tiny", "messages": [{"role": "user", "content": "x"}], "response_format": form, "seed": 1,
    }  # fmt: skip
    whole = client.chat.completions.create(**ask, n=3)
    assert all(is_weather(json.loads(choice.message.content or "")) for choice in whole.choices)
    chunks = client.chat.completions.create(**ask, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == whole.choices[0].message.content


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
        ({"guided_choice": ["yes, sir", 'a "quoted"\nno']}, 'yes, sir|a "quoted"\nno'),
        ({"guided_grammar": 'start: "x" /[0-9]/ "y"'}, "x[0-9]y"),
        ({"guided_grammar": 'root ::= "x" [0-9] "y"'}, "x[0-9]y"),
        ({"structured_outputs": {"regex": "c{2,4}d"}}, "c{2,4}d"),
        ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
        ({"structured_outputs": {"grammar": 'start: "only"'}}, "only"),
        ({"guided_json": json.dumps({"const": 5})}, "5"),
        ({"structured_outputs": {"json": {"enum": ["a", 2]}}}, '"a"|2'),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "boolean"}}}}, "true|false"),
    ],
)
def test_each_spelling(url: str, fields: dict[str, Any], pattern: str) -> None:
    assert re.fullmatch(pattern, content(chat(url, **fields)), re.DOTALL)


def test_any_json_object_is_one(url: str) -> None:
    answer = chat(url, response_format={"type": "json_object"}, max_tokens=200, temperature=0).json()["choices"][0]
    text = answer["message"]["content"]
    assert text.startswith("{")
    if answer["finish_reason"] == "stop":
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("type", ["json_object", "json_schema"])
def test_a_schema_may_stand_beside_the_type(url: str, type: str) -> None:
    """As clients of llama.cpp's server send it."""
    answer = chat(url, response_format={"type": type, "schema": WEATHER}).json()["choices"][0]
    assert is_weather(json.loads(answer["message"]["content"]))


def test_completions_have_it_too(url: str) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "guided_regex": "[xyz]{2}", "max_tokens": 8}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
    assert all(re.fullmatch("[xyz]{2}", choice["text"]) for choice in answer["choices"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "parallel"),
    [("required", False), ({"type": "function", "function": {"name": "listen"}}, True)],
    ids=["required", "named"],
)
def test_a_call_is_enforced(client: openai.OpenAI, choice: Any, parallel: bool, stream: bool) -> None:
    """From a model that knows nothing of tools."""
    asked: Any = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        tools=TOOLS,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        stream=stream,
        seed=5,
    )
    names, arguments, reasons = [], "", []
    if stream:
        for chunk in asked:
            assert not chunk.choices[0].delta.content
            for call in chunk.choices[0].delta.tool_calls or ():
                names += [call.function.name] if call.function.name else []
                arguments += call.function.arguments or ""
            reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    else:
        assert asked.choices[0].message.content is None
        (call,) = asked.choices[0].message.tool_calls
        names, arguments, reasons = [call.function.name], call.function.arguments, [asked.choices[0].finish_reason]
    assert reasons == ["tool_calls"]
    assert len(names) == 1
    assert choice == "required" or names == ["listen"]
    assert is_weather(json.loads(arguments))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("most", [1, 8, 40])
def test_an_enforced_call_that_is_cut_off_is_a_call_all_the_same(
    client: openai.OpenAI, most: int, stream: bool
) -> None:
    """As OpenAI and vLLM give it: its name, the arguments so far, and the reason; nothing of it as content."""
    named: Any = {"type": "function", "function": {"name": "listen"}}
    asked: Any = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        tools=TOOLS,
        tool_choice=named,
        max_tokens=most,
        stream=stream,
        seed=5,
    )
    if stream:
        chunks = [chunk.choices[0] for chunk in asked]
        assert not any(chunk.delta.content for chunk in chunks)
        calls = [call.function for chunk in chunks for call in chunk.delta.tool_calls or ()]
        reason = chunks[-1].finish_reason
    else:
        assert asked.choices[0].message.content is None
        calls, reason = [call.function for call in asked.choices[0].message.tool_calls], asked.choices[0].finish_reason
    assert reason == "length"
    assert [call.name for call in calls if call.name] == ["listen"]
    with pytest.raises(json.JSONDecodeError):  # cut off
        json.loads("".join(call.arguments for call in calls))


def test_the_other_apis_give_an_enforced_call_that_is_cut_off_too(url: str) -> None:
    """Marked as incomplete; Ollama's clients run what they get, and so get none."""
    function = TOOLS[0]["function"]
    hello = [{"role": "user", "content": "hi"}]
    items = {"tools": [{"type": "function", **function}], "tool_choice": "required", "max_output_tokens": 8}
    response = httpx.post(f"{url}/v1/responses", json={"input": "hi", **items}, timeout=60).json()
    (item,) = response["output"]
    assert (response["status"], item["type"], item["status"], item["name"]) == (
        "incomplete", "function_call", "incomplete", "look",
    )  # fmt: skip
    blocks = {"tools": [{"name": "look", "input_schema": WEATHER}], "tool_choice": {"type": "any"}, "max_tokens": 8}
    message = httpx.post(f"{url}/v1/messages", json={"messages": hello, **blocks}, timeout=60).json()
    (block,) = message["content"]
    assert (message["stop_reason"], block["type"], block["name"], block["input"]) == (
        "max_tokens", "tool_use", "look", {},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
         "response_format.json_schema.schema"),
        ({"guided_json": {"type": "strin"}}, "guided_json"),
        ({"response_format": {"type": "json_object", "schema": 5}}, "response_format.schema"),
        ({"guided_json": {"$ref": "#"}}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": BOMB}, "guided_json"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "(?=a)b"}, "guided_regex"),
        ({"guided_regex": "a{100000000}"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"guided_choice": ["x" * 300_000]}, "guided_choice"),
        ({"guided_grammar": "start: missing"}, "guided_grammar"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar"),
        ({"guided_grammar": "root ::= missing"}, "guided_grammar"),
        ({"guided_grammar": "# nothing but a comment"}, "guided_grammar"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"guided_regex": "a", "tools": TOOLS, "tool_choice": "required"}, "guided_regex"),
        *(({"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
            "tool_choice": "required"}, "tools[0].function.parameters")
          for parameters in ({"type": "x"}, {"type": "string"}, {"type": ["string", "null"]}, {"const": 3})),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_its_path(url: str, fields: dict[str, Any], param: str) -> None:
    answer = chat(url, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert len(answer.json()["error"]["message"]) < 400


def test_a_grammar_that_passes_its_limits_is_the_requests_fault(url: str) -> None:
    """Whether that shows at once or some tokens later."""
    for grammar in ('start: a{1000}\na: b{1000}\nb: "x"{1000}', 'start: "x" a{1000}\na: b{1000}\nb: "x"{1000}'):
        answer = chat(url, guided_grammar=grammar, max_tokens=20)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "guided_grammar"
    assert chat(url, max_tokens=2).status_code == 200


# Shows after the first token only: a text begins with a quotation mark.
EXPLODES: dict[str, Any] = {"type": "string", "pattern": "^b{100000000}$"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": {"schema": EXPLODES}}},
         "response_format.json_schema.schema"),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "b", "schema": EXPLODES}}},
         "text.format.schema"),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": EXPLODES}}, "max_tokens": 20},
         "output_config.format.schema"),
    ],
)  # fmt: skip
def test_a_form_that_fails_amid_the_answer_is_named_as_its_api_does(
    url: str, path: str, body: dict[str, Any], param: str
) -> None:
    asked = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
    answer = httpx.post(f"{url}{path}", json={**asked, **body}, timeout=60)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_as_many_choices_as_are_allowed(url: str) -> None:
    choices = [f"choice {number:x}" for number in range(MAX_CHOICES)]
    assert content(chat(url, guided_choice=choices)) in choices


def test_a_schema_that_explodes_holds_nobody_up(url: str) -> None:
    """It is refused soon, and others are answered meanwhile."""
    began = time.process_time()
    for _ in range(3):
        assert chat(url, guided_json=BOMB).status_code == 400
    assert httpx.get(f"{url}/health", timeout=5).status_code == 200
    assert time.process_time() - began < 20


@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_may_come_first(opened: bool) -> None:
    """Where the prompt has opened it, it must; and its markers may be special tokens or text."""
    import llguidance

    from appliance.checkpoint import grammar

    thought = (None if opened else "<think>", "</think>")
    whole = grammar.after_thought(grammar.regex("[0-9]+"), [thought], {})
    tokenizer = llguidance.LLTokenizer("byte")

    def follows(text: str) -> bool:
        matcher = llguidance.LLMatcher(tokenizer, whole, log_level=0)
        grammar.check(matcher)
        tokens = tokenizer.tokenize_str(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    begin = "" if opened else "<think>"
    assert follows(f"{begin}well, 5 <\n</think>\n\n42")
    assert follows("42") is not opened
    assert not follows(f"{begin}well</think>no")
    assert not follows("no")


def test_arguments_may_refer_to_definitions_of_their_own_schema(url: str) -> None:
    """As Pydantic writes schemas."""
    parameters = {
        "type": "object",
        "properties": {"kind": {"$ref": "#/$defs/Kind"}},
        "required": ["kind"],
        "additionalProperties": False,
        "$defs": {"Kind": {"enum": ["sun", "rain"]}},
    }
    tools = [{"type": "function", "function": {"name": "look", "parameters": parameters}}]
    answer = chat(url, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=200)
    assert answer.status_code == 200, answer.text
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["kind"] in ("sun", "rain")


def test_a_demanded_call_comes_before_the_form_of_a_message(url: str) -> None:
    """As instructor asks for both, in either API."""
    person = {"type": "object", "properties": {"name": {"enum": ["Ann"]}}, "required": ["name"]}
    function = {"name": "person", "parameters": person}
    form = {"name": "person", "schema": person, "strict": True}
    answer = chat(
        url, tools=[{"type": "function", "function": function}], max_tokens=200, parallel_tool_calls=False,
        tool_choice={"type": "function", "function": {"name": "person"}},
        response_format={"type": "json_schema", "json_schema": form},
    )  # fmt: skip
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["name"] == "Ann"
    items = {
        "input": "hi", "tools": [{"type": "function", **function}], "max_output_tokens": 200, "seed": 3,
        "tool_choice": {"type": "function", "name": "person"}, "text": {"format": {"type": "json_schema", **form}},
    }  # fmt: skip
    response = httpx.post(f"{url}/v1/responses", json=items, timeout=60)
    assert response.status_code == 200, response.text
    assert [item["type"] for item in response.json()["output"]] == ["function_call"]


def test_an_answer_beside_strict_tools_is_free(strict_url: str) -> None:
    """Where the model opens no call."""
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    (token,) = httpx.post(f"{strict_url}/tokenize", json={"prompt": "<"}, timeout=60).json()["tokens"]
    fields = {"logit_bias": {str(token): 100}, "temperature": 0, "max_tokens": 9}
    for tools in (TOOLS, strict):
        answer = chat(strict_url, tools=tools, **fields)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "<" * 9


def test_a_strict_schema_that_cannot_be_used_is_refused(strict_url: str) -> None:
    wrong: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "frob"}}}
    assert chat(strict_url, tools=[wrong], max_tokens=2).status_code == 200
    wrong["function"]["strict"] = True
    answer = chat(strict_url, tools=[*TOOLS, wrong])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[2].function.parameters")
