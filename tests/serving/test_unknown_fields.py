"""Fields that this API does not know: slips of the pen are refused, what clients send anyway is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from appliance.home import Home
from appliance.serving.chat_request import ChatFields
from appliance.serving.client_fields import SENT_BY_CLIENTS, WITHOUT_EFFECT, DescriptiveFields
from appliance.serving.errors import ApiError
from appliance.serving.fields import (
    IGNORED_HEADER,
    MAX_IGNORED,
    MAX_LOOKED_UP,
    MAX_SLIP_LENGTH,
    MAX_UNKNOWN,
    PARTLY_SUPPORTED,
    Ignored,
    decode_part,
    decode_request,
)
from appliance.serving.ollama.fields import Options
from appliance.serving.sampling import StreamOptions
from appliance.serving.thinking import ReasoningOptions
from tests.supervisor.scripted import Door, make_profile

HELLO = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {"/v1/chat/completions": {"messages": HELLO}, "/v1/completions": {"prompt": "x"}}


@pytest.fixture(scope="module")
def strict_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    home = Home.at(tmp_path_factory.mktemp("strict") / "home").create()
    profile = make_profile(home, **{"strict-requests": True}).rename(home.root / "strict.json")
    with Door(home, profile=profile) as door:
        door.wait("ready")
        yield door


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_field_is_named_in_a_header(door: Door, path: str, stream: bool) -> None:
    """Each once, escaped, whether the answer is streamed or whole."""
    body = {**BODIES[path], "max_tokens": 1, "stream": stream, "frobnicate": 1, "zürich, x": {}, "mirostat": None}
    response = door.http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers[IGNORED_HEADER] == "frobnicate, z%C3%BCrich%2C%20x"


@pytest.mark.parametrize("path", BODIES)
def test_what_clients_are_known_to_send_is_accepted_without_a_word(door: Door, path: str) -> None:
    """And so is what OpenAI's API knows and what has no effect here."""
    typed: dict[str, Any] = {"metadata": {}, "prompt_cache_options": {}, "store": True}
    described = {name: typed.get(name, "x") for name in DescriptiveFields.__struct_fields__}
    body = {**BODIES[path], "max_tokens": 1, **dict.fromkeys(SENT_BY_CLIENTS, True), **described}
    response = door.http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert IGNORED_HEADER not in response.headers


@pytest.mark.parametrize("name", ["temprature", "max_token", "maxTokens", "max_new_tokens", "top-p", "Stream", "stops"])
@pytest.mark.parametrize("strict", [False, True])
def test_a_slip_of_the_pen_is_refused(name: str, strict: bool) -> None:
    """It was meant to change the answer."""
    with pytest.raises(ApiError) as refused:
        decode_request(msgspec.json.encode({"messages": HELLO, name: 1}), ChatFields, strict=strict)
    assert (refused.value.param, refused.value.code) == (name, "unknown_field")


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", ["frobnicate", "chat_id"])
def test_a_strict_profile_refuses_every_unknown_field(strict_door: Door, path: str, name: str) -> None:
    """Those of clients, too; what OpenAI's API knows is accepted."""
    response = strict_door.http.post(path, json={**BODIES[path], name: 1})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
    known = strict_door.http.post(path, json={**BODIES[path], "max_tokens": 1, "user": "u"})
    assert known.status_code == 200


def test_the_header_stays_short() -> None:
    """However many fields there are, and however long their names."""
    body: dict[str, Any] = {"messages": HELLO, **{f"{number:03}" + "ü" * 1000: 1 for number in range(200)}}
    _, ignored = decode_request(msgspec.json.encode(body), ChatFields, strict=False)
    names = ignored.headers[IGNORED_HEADER].split(", ")
    assert len(names) == MAX_IGNORED + 1
    assert len(ignored.headers[IGNORED_HEADER]) < 16_384


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names for which a slip was looked for."""
    names: list[str] = []

    def look(name: str, *_: Any, **__: Any) -> list[str]:
        names.append(name)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", look)
    return names


def test_what_is_unknown_within_an_object_is_named_by_its_path() -> None:
    """However deep, and refused like any other where that is wanted."""
    form = {"type": "json_schema", "x": 1, "json_schema": {"schema": {"y": 1}, "z": 1}}
    body = msgspec.json.encode({"messages": HELLO, "response_format": form, "stream_options": {"frobnicate": 1}})
    _, ignored = decode_request(body, ChatFields, strict=False)
    expected = ["stream_options.frobnicate", "response_format.x", "response_format.json_schema.z"]
    assert sorted(ignored.names) == sorted(expected)
    with pytest.raises(ApiError) as refused:
        decode_request(body, ChatFields, strict=True)
    assert (refused.value.param, refused.value.code) == (ignored.names[0], "unknown_field")


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", {"messages": HELLO}), ("/v1/responses", {"input": "hello"})]
)
def test_a_variable_that_says_nothing_to_the_template_is_named(door: Door, path: str, body: dict[str, Any]) -> None:
    response = door.http.post(path, json={**body, "chat_template_kwargs": {"frobnicate": 1, "messages_": []}})
    assert response.status_code == 200, response.text
    named = set(response.headers[IGNORED_HEADER].split(", "))
    assert named == {"chat_template_kwargs.frobnicate", "chat_template_kwargs.messages_"}


def test_an_integer_may_be_written_with_a_point() -> None:
    """As languages without integers write it."""
    body = {"messages": HELLO, "max_tokens": 5.0, "n": 2.0, "seed": -1.0, "temperature": 1.0, "min_tokens": 1e0}
    fields, _ = decode_request(msgspec.json.encode(body), ChatFields, strict=True)
    assert (fields.max_tokens, fields.n, fields.seed, fields.min_tokens) == (5, 2, -1, 1)
    assert isinstance(fields.temperature, float)
    thinking, _ = decode_request(b'{"messages": [], "reasoning": {"max_tokens": 1024.0}}', ChatFields, strict=True)
    assert thinking.reasoning == ReasoningOptions(max_tokens=1024)
    options = decode_part({"top_k": 40.0, "num_predict": 9.0}, Options, "options", Ignored(strict=True))
    assert (options.top_k, options.num_predict) == (40, 9)
    with pytest.raises(ApiError) as refused:
        decode_request(msgspec.json.encode({"messages": HELLO, "max_tokens": 1.5}), ChatFields, strict=True)
    assert refused.value.param == "max_tokens"
    with pytest.raises(ApiError) as refused:
        decode_request(b'{"messages": [], "reasoning": {"max_tokens": 1.5}}', ChatFields, strict=True)
    assert refused.value.param == "reasoning.max_tokens"


@pytest.mark.parametrize("count", [MAX_UNKNOWN, MAX_UNKNOWN + 1, 40_000])
def test_unknown_fields_are_bounded(looked_up: list[str], count: int) -> None:
    """Too many are refused, and only the first are compared with known names."""
    body: dict[str, Any] = {"messages": HELLO, **{f"field_{number}": 1 for number in range(count)}}
    if count > MAX_UNKNOWN:
        with pytest.raises(ApiError) as refused:
            decode_request(msgspec.json.encode(body), ChatFields, strict=False)
        assert (refused.value.status, refused.value.code) == (400, "unknown_field")
        assert str(MAX_UNKNOWN) in refused.value.message
    else:
        _, ignored = decode_request(msgspec.json.encode(body), ChatFields, strict=False)
        assert len(ignored.names) == MAX_UNKNOWN
    assert len(looked_up) == MAX_LOOKED_UP


def test_a_field_that_each_part_has_is_compared_once(looked_up: list[str]) -> None:
    """And a name that is far too long for a slip, never."""
    ignored = Ignored(strict=False)
    part = {"frobnicate": 1, "x" * (MAX_SLIP_LENGTH + 1): 1}
    for index in range(100):
        decode_part(part, StreamOptions, f"parts[{index}]", ignored)
    assert looked_up == ["frobnicate"]
    assert len(ignored.names) == 2


def test_no_field_stands_in_two_tables() -> None:
    """What is refused in part is not accepted as a whole."""
    assert not SENT_BY_CLIENTS & WITHOUT_EFFECT
    assert not (SENT_BY_CLIENTS | WITHOUT_EFFECT) & PARTLY_SUPPORTED.keys()
    assert not SENT_BY_CLIENTS & {field.encode_name for field in msgspec.structs.fields(ChatFields)}
