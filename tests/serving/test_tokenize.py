"""/tokenize and /detokenize: the tokens that an answer would be charged, and back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from appliance.serving.fields import IGNORED_HEADER
from appliance.serving.tokenize import Tokens, TokensText
from tests.supervisor.scripted import Door

DOCUMENTED = {"/tokenize": Tokens, "/detokenize": TokensText}
HELLO = [{"role": "user", "content": "grüße"}]


def post(door: Door, path: str, **body: Any) -> dict[str, Any]:
    response = door.http.post(path, json=body)
    assert response.status_code == 200, response.text
    if path in DOCUMENTED:
        msgspec.json.decode(response.content, type=DOCUMENTED[path])
    return dict(response.json())


def test_a_prompt_there_and_back(door: Door) -> None:
    """As /v1/completions would encode it."""
    tokens = post(door, "/tokenize", model="tiny", prompt="Grüße!")
    assert (tokens["count"], tokens["max_model_len"], tokens["token_strs"]) == (len(tokens["tokens"]), 512, None)
    charged = post(door, "/v1/completions", prompt="Grüße!", max_tokens=1)["usage"]["prompt_tokens"]
    assert tokens["count"] == charged
    assert post(door, "/detokenize", tokens=tokens["tokens"])["prompt"] == "Grüße!"


def test_what_belongs_to_messages_is_of_no_use_beside_a_prompt(door: Door) -> None:
    answer = door.http.post("/tokenize", json={"prompt": "hi", "tools": [5], "enable_thinking": True})
    assert answer.status_code == 200
    assert answer.headers[IGNORED_HEADER] == "tools, enable_thinking"


def test_messages_go_through_the_template(door: Door) -> None:
    """Whatever else a chat's request holds; special tokens are part of the text."""
    tokens = post(door, "/tokenize", messages=HELLO, max_tokens=5, temperature=1)["tokens"]
    charged = post(door, "/v1/chat/completions", messages=HELLO, max_tokens=1)["usage"]["prompt_tokens"]
    assert len(tokens) == charged
    shorter = post(door, "/tokenize", messages=HELLO, add_generation_prompt=False)["tokens"]
    assert tokens[: len(shorter)] == shorter
    assert len(shorter) < len(tokens)
    text = post(door, "/detokenize", tokens=tokens)["prompt"]
    assert "grüße" in text
    assert post(door, "/tokenize", prompt=text, add_special_tokens=False)["tokens"] == tokens


def test_tokens_may_be_spelt_out(door: Door) -> None:
    """As the vocabulary has them."""
    answer = post(door, "/tokenize", prompt="ab c", add_special_tokens=False, return_token_strs=True)
    assert len(answer["token_strs"]) == answer["count"]
    assert answer["token_strs"][:2] == ["a", "b"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "x" * 100_000}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "wizard"}]}, "messages[0].role"),
        ("/tokenize", {"messages": HELLO, "tools": [{}]}, "tools[0].function"),
        ("/tokenize", {"prompt": "x", "return_token_str": True}, "return_token_str"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [5, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [5, 100_000]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1] * ((1 << 20) + 1)}, "tokens"),
    ],
)
def test_a_wrong_field_is_named(door: Door, path: str, body: dict[str, Any], param: str) -> None:
    """In OpenAI's shape, as vLLM's own errors are."""
    response = door.http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_they_are_let_in_as_all_others(door: Door, path: str) -> None:
    """No page of another site, and no other model."""
    body: dict[str, Any] = {"prompt": "x"} if path == "/tokenize" else {"tokens": [5]}
    assert door.http.post(path, json=body, headers={"Origin": "https://app.example"}).status_code == 403
    assert door.http.post(path, json={**body, "model": "other"}).status_code == 404
