"""One answer, token by token: what each adds, and what they come to."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.core_protocol import TokenOutput
from appliance.serving.choice import Choice, Piece
from appliance.serving.fields import Ignored
from appliance.serving.parsers.base import Delta
from appliance.serving.parsers.registry import FORMATS, REASONING
from appliance.serving.reading import AnswerReader, ModelFormats
from appliance.serving.tools import ToolUse, check_tools

CALL = '<tool_call>{"name": "f", "arguments": {"a": [1, 2, 3]}}</tool_call>'
USE = check_tools([{"type": "function", "function": {"name": "f"}}], None, None, Ignored(strict=True))
BOTH = ModelFormats(FORMATS["hermes"], REASONING["think"])


def read(reader: AnswerReader, *tokens: str) -> list[Delta]:
    deltas = [reader.push(token) for token in tokens]
    return [delta for delta in [*deltas, reader.finish()] if delta]


def reader(*, parallel: bool = True) -> AnswerReader:
    return AnswerReader(FORMATS["hermes"].parser(USE.tools), parallel=parallel)


def test_arguments_come_as_they_are_written() -> None:
    """Not when the call is complete."""
    deltas = read(reader(), *CALL)
    parts = [call for delta in deltas for call in delta.calls]
    assert len(parts) > 5
    assert [part.name for part in parts if part.name is not None] == ["f"]
    assert json.loads("".join(part.arguments for part in parts)) == {"a": [1, 2, 3]}


@pytest.mark.parametrize(("end", "called"), [(len(CALL), True), (len(CALL) - 14, False), (20, False)])
def test_calls_count_where_the_last_is_complete(end: int, called: bool) -> None:
    """A client runs them then."""
    one = reader()
    read(one, *CALL[:end])
    assert one.called is called
    assert not one.full


def test_an_answer_is_full_where_a_second_call_begins() -> None:
    """If there may be one only: of a second nothing is told, and nothing after it."""
    one = reader(parallel=False)
    parts = [call for delta in read(one, "Well. ", CALL, CALL, "More.") for call in delta.calls]
    assert (one.full, one.called) == (True, True)
    assert {part.index for part in parts} == {0}


@pytest.mark.parametrize(
    ("formats", "use", "reads"),
    [
        (BOTH, USE, True),
        (BOTH, ToolUse(), True),
        (ModelFormats(FORMATS["hermes"], None), USE, True),
        (ModelFormats(FORMATS["hermes"], None), ToolUse(), False),
        (ModelFormats(FORMATS["hermes"], None), ToolUse(USE.tools, choice="none"), False),
        (ModelFormats(None, None), USE, False),
    ],
)
def test_nothing_is_read_where_there_is_nothing_to_read(formats: ModelFormats, use: ToolUse, reads: bool) -> None:
    """Then an answer costs no parser."""
    assert (formats.reading("prompt", use) is not None) is reads


def test_tokens_of_reasoning_are_counted() -> None:
    """Those that only belong to a marker count with what came before them."""
    reading = BOTH.reading("", USE)
    assert reading is not None
    one = reading.reader()
    read(one, "<think>", "Let", " me", " see", "</think>", "\n", "It", " rains")
    assert 3 <= one.reasoning_tokens <= 5


@pytest.mark.parametrize("size", [1, 5, 100])
def test_tokens_of_reasoning_are_told_from_those_of_the_text(size: int) -> None:
    """However many come at once, where the client or this process is slow."""
    text = "<think>I look.</think>It rains."
    outputs = [
        TokenOutput(request_id="r", token_ids=tuple(map(ord, text[at : at + size]))) for at in range(0, len(text), size)
    ]
    generation: Any = SimpleNamespace(take=iter(outputs).__next__)
    detokenizer: Any = SimpleNamespace(push=lambda ids: "".join(map(chr, ids)), finish=str)
    reading = BOTH.reading("", USE)
    assert reading is not None
    choice = Choice(0, generation, detokenizer, prompt_token_ids=[], max_tokens=99, stops=(), reader=reading.reader())
    whole = Piece()
    for _ in outputs:
        piece = choice.take()
        assert piece is not None
        whole.add(piece)
    assert "".join(map(chr, whole.token_ids[: whole.reasoned])) == "<think>I look.</think>"
