"""Hostile text costs no more than other text: time grows with its length, whatever it is made of."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from appliance.serving.parsers.base import OutputParser
from appliance.serving.parsers.registry import FORMATS, REASONING
from tests.parsers.parsing import FRAGMENTS, TOOLS

LENGTH = 100_000
BUDGET_S = 0.5
SIZES = [1, 1000, LENGTH]  # of the pieces

# What begins an argument's value in each format.
OPENED = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"a": ',
    "qwen3-coder": "<tool_call><function=f><parameter=o>",
    "llama3-json": '{"name": "f", "parameters": {"a": ',
    "pythonic": "[f(a=",
    "mistral": '[TOOL_CALLS]f[ARGS]{"a": ',
    "deepseek-v3": '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": ',
    "deepseek-v3.1": '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": ',
    "dsml": '<｜DSML｜invoke name="f"><｜DSML｜parameter name="o">',
    "minimax-m2": '<minimax:tool_call><invoke name="f"><parameter name="o">',
    "glm-4.5": "<tool_call>f<arg_key>o</arg_key><arg_value>",
    "gpt-oss": '<|channel|>commentary to=functions.f<|message|>{"a": ',
    "gemma": "<|tool_call>call:f{a:",
    "kimi-k2": '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": ',
    "nemotron": '<TOOLCALL>[{"name": "f", "arguments": {"a": ',
    "granite": '<|tool_call|>[{"name": "f", "arguments": {"a": ',
    "phi-4-mini": 'functools[{"name": "f", "arguments": {"a": ',
}


def hostile(name: str) -> str:
    """All that begins like a marker, and the same without the last character."""
    markers = [fragment for fragment in FRAGMENTS[name] if fragment[0] in "<[{`f"]
    return "".join(markers) + "".join(marker[:-1] for marker in markers)


def is_fast(make: Callable[[], OutputParser], text: str, size: int) -> bool:
    """Whether one of three runs stays within the budget: a busy neighbour on the same core costs processor time too."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return any(seconds(make(), pieces) < BUDGET_S for _ in range(3))


def seconds(parser: OutputParser, pieces: list[str]) -> float:
    before = time.process_time()
    for piece in pieces:
        parser.push(piece)
    parser.finish()
    return time.process_time() - before


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FORMATS)
def test_repeated_markers_take_linear_time(name: str, size: int) -> None:
    text = hostile(name)
    assert is_fast(lambda: FORMATS[name].parser(TOOLS), text * (LENGTH // len(text) + 1), size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("value", ["[", '{"a":', " "])
@pytest.mark.parametrize("name", FORMATS)
def test_deep_and_long_arguments_take_linear_time(name: str, value: str, size: int) -> None:
    text = OPENED[name] + value * (LENGTH // len(value))
    assert is_fast(lambda: FORMATS[name].parser(TOOLS), text, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("text", ["<think>a</think>", "</thin"])
@pytest.mark.parametrize("name", REASONING)
def test_reasoning_takes_linear_time(name: str, text: str, size: int) -> None:
    def parser() -> OutputParser:
        return REASONING[name].parser(FORMATS["hermes"].parser(TOOLS), opened=True)

    assert is_fast(parser, text * (LENGTH // len(text)), size)
