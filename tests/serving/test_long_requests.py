"""Requests of any length and shape: none holds the event loop for long."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.core_protocol import TokenLogprob
from appliance.serving import answering, chat_request, fields, respond
from appliance.serving.body import INLINE_BYTES, MAX_PARTS, has_too_many_parts, parse_body
from appliance.serving.choice import Choice, Piece
from appliance.serving.completions import CompletionFields, completion_ask
from appliance.serving.errors import ApiError, bad_request
from appliance.serving.fields import MAX_SHOWN, Ignored, read_fields, shown
from appliance.serving.served_model import INLINE_TOKENS, ServedModel
from appliance.serving.tokenize import DetokenizeFields
from appliance.serving.tools import check_tools


@pytest.mark.parametrize(
    ("chat", "at_once"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, True),
        ({"messages": [{"role": "user", "content": "x"}] * 100}, False),
        ({"messages": [{"role": "user", "content": "", "reasoning": "x" * 5000}]}, False),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 5000}]}, False),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [0] * 5000}, False),
        ({"messages": [{"role": "user", "content": "x"}], "tool_choice": [0] * 5000}, False),
        ({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": [0] * 5000}}, False),
    ],
)
async def test_a_long_chat_keeps_nobody_waiting(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch, chat: dict[str, Any], at_once: bool
) -> None:
    """It is checked beside the event loop, whatever of it is long."""
    threads: list[threading.Thread] = []

    def watched(*_: Any) -> Any:
        threads.append(threading.current_thread())
        raise bad_request("enough")

    monkeypatch.setattr(chat_request, "check_tools", watched)
    with pytest.raises(ApiError):
        await chat_request.chat_prompt(chat_request.ChatFields(**chat), model, Ignored(strict=False))
    assert [thread is threading.main_thread() for thread in threads] == [at_once]


@pytest.mark.parametrize(
    ("prompt", "at_once"), [("x", True), ("x" * 5000, False), (["x" * 100] * 100, False), ([1] * 5000, False)]
)
async def test_long_prompts_keep_nobody_waiting(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch, prompt: Any, at_once: bool
) -> None:
    """Nor do many short ones."""
    threads: list[threading.Thread] = []

    def watched(*_: Any, **__: Any) -> Any:
        threads.append(threading.current_thread())
        raise bad_request("enough")

    monkeypatch.setattr(model.tokenizer, "encode", watched)
    monkeypatch.setattr(model, "check_token_ids", watched)
    with pytest.raises(ApiError):
        await completion_ask(CompletionFields(prompt=prompt), model)
    assert [thread is threading.main_thread() for thread in threads] == [at_once]


async def test_a_long_body_is_decoded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def watched(_: bytes) -> Any:
        threads.append(threading.current_thread())
        return {"tokens": []}

    monkeypatch.setattr(fields, "parse_body", watched)
    for length in (INLINE_BYTES, INLINE_BYTES + 1):
        await read_fields(b"x" * length, DetokenizeFields, strict=True)
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


@pytest.mark.parametrize(("part", "each"), [("[]", 1), ("{}", 1), ('{"a":1}', 2), ('{"a":[]}', 3)])
def test_a_body_of_too_many_parts_is_refused_before_it_is_decoded(part: str, each: int) -> None:
    """Text may have as many brackets and colons as it likes, in any spelling."""
    text = r'"\\", "\"[[[", ' + json.dumps('[{:\\"' * MAX_PARTS)
    most = (MAX_PARTS - 1) // each
    assert len(parse_body(f"[{text},{','.join([part] * most)}]".encode())) == most + 3
    for body in (f"[{text},{','.join([part] * (most + 1))}]", "[" * (MAX_PARTS + 1), ":" * (MAX_PARTS + 1)):
        with pytest.raises(ApiError) as refused:
            parse_body(body.encode())
        assert refused.value.code == "invalid_body"


@pytest.mark.parametrize("body", ['"' + '\\"' * 1_000_000, '\\"' * 1_000_000, '"[' * 1_000_000])
def test_text_without_an_end_is_read_once(body: str) -> None:
    """Looking for its end again from each quote within it would take minutes."""
    before = time.process_time()
    has_too_many_parts(body.encode() + b"[" * MAX_PARTS + b'"[')
    assert time.process_time() - before < 1


@pytest.mark.parametrize("end", ["\\", '"', "", '\\"', "\\\\"])
def test_a_text_that_the_body_ends_in_is_read_once(end: str) -> None:
    """Whatever came before it."""
    before = time.process_time()
    has_too_many_parts(f'[{"1," * 100_000}"{"[" * (MAX_PARTS + 1)}{end}'.encode())
    assert time.process_time() - before < 1


def test_a_value_of_many_parts_is_shown_in_part() -> None:
    """Without writing all of it first."""
    before = time.process_time()
    assert shown([[]] * 5_000_000).endswith("...")
    assert len(shown({"a": "x" * 1000})) == MAX_SHOWN
    assert shown({"a": ["ü", None, 1.5]}) == '{"a": ["ü", null, 1.5]}'
    assert time.process_time() - before < 0.5


def test_tools_are_looked_up_in_one_step() -> None:
    """However many a choice lists of however many there are."""
    tools = [{"type": "function", "function": {"name": f"f{index}"}} for index in range(1000)]
    allowed = {"mode": "auto", "tools": tools[-1:] * 50_000}
    before = time.process_time()
    use = check_tools(tools, {"type": "allowed_tools", "allowed_tools": allowed}, None, Ignored(strict=True))
    assert [tool.name for tool in use.tools] == ["f999"]
    assert time.process_time() - before < 0.5


@pytest.mark.parametrize(
    ("tokens", "has_logprobs", "at_once"),
    [(INLINE_TOKENS, False, True), (INLINE_TOKENS + 1, False, False), (1, True, False)],
)
async def test_a_long_answer_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, tokens: int, has_logprobs: bool, at_once: bool
) -> None:
    """Each of its tokens may have twenty alternatives."""
    threads: list[threading.Thread] = []

    async def whole(*_: Any) -> list[Piece]:
        return [Piece(token_ids=[1] * tokens)]

    class Watched(respond.Answer):
        def frames(self, answering: Any) -> Any:
            raise NotImplementedError

        def whole(self, choices: list[Choice], pieces: list[Piece]) -> dict[str, Any]:
            threads.append(threading.current_thread())
            return {"tokens": len(pieces[0].token_ids)}

    monkeypatch.setattr(respond, "whole_unless_gone", whole)
    answering: Any = SimpleNamespace(choices=[], has_logprobs=has_logprobs)
    request: Any = None
    response: Any = await respond.respond(request, answering, Watched(), stream=False, headers={})
    assert json.loads(response.content) == {"tokens": tokens}
    assert [thread is threading.main_thread() for thread in threads] == [at_once]


@pytest.mark.parametrize(("tokens", "fits"), [(10, True), (11, False)])
async def test_the_logprobs_of_a_whole_answer_are_bounded(
    monkeypatch: pytest.MonkeyPatch, tokens: int, fits: bool
) -> None:
    """Of all its choices together: with twenty alternatives, those of long answers would take gigabytes."""
    monkeypatch.setattr(answering, "MAX_WHOLE_LOGPROBS", 60)
    entry = TokenLogprob(token_id=1, logprob=-1.0, top=((1, -1.0), (2, -2.0)))

    class Long(answering.Answering):
        def __init__(self) -> None:
            self.choices: Any = [SimpleNamespace(index=index) for index in range(2)]
            self._logprobs_param = "top_logprobs"

        async def pieces(self) -> Any:
            for _ in range(tokens):
                for choice in self.choices:
                    yield choice, Piece(logprobs=[entry])
                yield None

    if fits:
        assert [len(piece.logprobs) for piece in await Long().whole()] == [tokens, tokens]
        return
    with pytest.raises(ApiError) as refused:
        await Long().whole()
    assert (refused.value.status, refused.value.param) == (400, "top_logprobs")
