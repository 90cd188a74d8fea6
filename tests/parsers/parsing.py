"""What a parser makes of a text, however it is cut; and the fragments that texts for each format are made of."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from appliance.serving.parsers.base import OutputParser, Tool

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string"},
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "b": {"type": "boolean"},
        "o": {"type": "object"},
        "l": {"type": "array"},
        "z": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
}
TOOLS = (Tool("f", parameters=SCHEMA), Tool("g"))


class Answer(NamedTuple):
    """All deltas, put together: each call is its name, its arguments and its id."""

    content: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    reasoning: str = ""


def put_together(parser: OutputParser, pieces: Sequence[str]) -> Answer:
    content = reasoning = ""
    calls: list[list[str]] = []
    deltas = [parser.push(piece) for piece in pieces]
    for delta in [*deltas, parser.finish()]:
        content += delta.content
        reasoning += delta.reasoning
        for call in delta.calls:
            if call.name is not None:
                assert call.index == len(calls), "calls begin in their order"
                calls.append([call.name, "", call.id])
            assert call.index == len(calls) - 1, "only the last call goes on"
            calls[-1][1] += call.arguments
    return Answer(content, tuple((name, arguments, call_id) for name, arguments, call_id in calls), reasoning)


def cuts(text: str, choose: random.Random) -> Iterator[str]:
    """`text` in pieces of random lengths, some of them empty."""
    at, longest = 0, choose.choice((1, 3, 12, 60))
    while at < len(text):
        length = choose.randint(0, longest)
        yield text[at : at + length]
        at += length


JSON = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    ", ",
    '"',
    "\\",
    '{"name": "f"',
    '"name": "g"',
    '"arguments": {"a": "b"}',
    '"arguments": ',
    '"parameters": {',
    '{"name": "f", "arguments": {',
    '"a": 1',
    '"l": [1, {"k": null}]',
    '"é\\n\\u00e9😀"',
    "tru",
    "1e",
    "-",
    '"{\\"a\\": 1}"',
    "}}",
    "null",
    "```json",
    "```",
]
PYTHON = [
    "[",
    "]",
    "(",
    ")",
    ",",
    "f(",
    "g()",
    "[f(a=",
    "n=1",
    ", l=[1, (2,), {'k': None}]",
    "'it\\'s'",
    '"x\\u00e9"',
    "'''",
    "\\",
    "True",
    "=",
    "{",
    "}",
    ":",
    "-1.5",
    "f(a='b', n=2)",
]
TEXT = ["word ", "wörd\n", "\n", " ", "\t\n ", "<", "</", "<|", "`", "😀", "Hello, world. ", ";", ">"]
TAG_VALUES = ["b", "5", "-1", "true", "None", '{"k": [1]}', "{'k': 1}", "\n", "a <b> c"]

FRAGMENTS: dict[str, list[str]] = {
    "hermes": [
        *JSON,
        "<tool_call>",
        "</tool_call>",
        "<tool_",
        '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>',
    ],
    "qwen3-coder": [
        *TAG_VALUES,
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "<function=",
        "</function>",
        "<parameter=a>",
        "<parameter=",
        "<parameter=n>",
        "</parameter>",
        "</param",
        "<tool_call>\n<function=f>\n<parameter=a>\nb\n</parameter>\n",
    ],
    "llama3-json": [
        *JSON,
        "<|python_tag|>",
        "<|python_start|>",
        "<|python_end|>",
        '{"name": "f", "parameters": {"a": 1}}',
        "; ",
    ],
    "pythonic": [*PYTHON, "<|python_start|>", "<|python_end|>", "\n[f(a=1), g()]"],
    "mistral": [
        *JSON,
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "[TOOL",
        "f",
        "[TOOL_CALLS]f[ARGS]{",
        "[TOOL_CALLS]g[CALL_ID]123456789[ARGS]",
    ],
    "deepseek-v3": [
        *JSON,
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        "function<｜tool▁sep｜>f\n```json\n{",
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{",
        "<｜tool",
    ],
    "dsml": [
        *TAG_VALUES,
        "<｜DSML｜tool_calls>",
        "<｜DSML｜function_calls>",
        "</｜DSML｜tool_calls>",
        '<｜DSML｜invoke name="f">',
        "</｜DSML｜invoke>",
        '<｜DSML｜parameter name="a" string="true">',
        '<｜DSML｜parameter name="l" string="false">',
        '<｜DSML｜parameter name="n">',
        "</｜DSML｜parameter>",
        "<｜DSML｜",
        "</｜DSML",
        "<｜DSML｜toolcalls>\n",
        "</｜DSML｜toolcalls>",
        "<｜DSML｜tool>",
        '<｜DSML｜parameter name="a">',
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="g">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        "<think>",
        "</think>",
    ],
    "minimax-m2": [
        *TAG_VALUES,
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        '<invoke name="f">',
        "</invoke>",
        "<invoke name=",
        '<parameter name="a">',
        '<parameter name="n">',
        "</parameter>",
        "</",
        '<minimax:tool_call>\n<invoke name="g">\n',
    ],
    "glm-4.5": [
        *TAG_VALUES,
        "<tool_call>",
        "</tool_call>",
        "<tool_call>f\n",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<arg_key>a</arg_key>\n<arg_value>",
        "<arg_key>n</arg_key><arg_value>5</arg_value>",
        "f",
        "n",
        "<arg",
    ],
    "gpt-oss": [
        *JSON,
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
        "<|constrain|>",
        "assistant",
        "analysis",
        "commentary",
        "final",
        " to=functions.f",
        "json",
        "<|start|>assistant<|channel|>analysis<|message|>",
        "<|channel|>commentary to=functions.g <|constrain|>json<|message|>",
        "<|channel|>final<|message|>",
        "<|",
    ],
    "gemma": [
        *PYTHON,
        "```tool_code\n",
        "```",
        "<start_function_call>",
        "<end_function_call>",
        "<|tool_call>",
        "<tool_call|>",
        "call:f{",
        "call:",
        "a:",
        "<escape>",
        '<|"|>',
        '<|"|>b<|"|>',
        "l:[1,{k:null}]",
        "<start_function_call>call:f{a:<escape>b<escape>",
    ],
    "kimi-k2": [
        *JSON,
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "functions.f:0",
        "<|tool_call",
        "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{",
    ],
    "nemotron": [*JSON, "<TOOLCALL>", "</TOOLCALL>", "<TOOLCALL>[", "]</TOOLCALL>", "<TOOL"],
    "granite": [*JSON, "<|tool_call|>", "<tool_call>", "</tool_call>", "<function_call>", "<|tool_call|>[", "<|tool"],
    "phi-4-mini": [*JSON, "functools[", "functools", "<|tool_call|>", "<|/tool_call|>", "<|tool_call|>["],
}
FRAGMENTS["deepseek-v3.1"] = FRAGMENTS["deepseek-v3"]


def fragments_of(name: str, choose: random.Random) -> str:
    """A text of a format's own fragments, and words between."""
    pools = (FRAGMENTS[name], FRAGMENTS[name], TEXT)
    return "".join(choose.choice(choose.choice(pools)) for _ in range(choose.randint(1, 24)))
