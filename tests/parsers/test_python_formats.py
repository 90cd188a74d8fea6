"""Formats whose arguments are literals of Python, or of Gemma."""

from __future__ import annotations

import json

import pytest

from appliance.serving.parsers.literals import python_as_json
from appliance.serving.parsers.registry import FORMATS
from tests.parsers.parsing import TOOLS, put_together

# (format, text, content, calls as name and arguments)
CALLS = [
    ("pythonic", '[f(a="b", n=-5), g()]', "", [("f", {"a": "b", "n": -5}), ("g", {})]),
    ("pythonic", "<|python_start|>[f(a='b')]<|python_end|> bye", "bye", [("f", {"a": "b"})]),
    (
        "pythonic",
        "Now:\n[f(o={'k': [1, (2.5,), {}], 'e': []}, b=True, z=None)]",
        "Now:",
        [("f", {"o": {"k": [1, [2.5], {}], "e": []}, "b": True, "z": None})],
    ),
    ("pythonic", r"""[f(a='it\'s "x" \n\x41\u00e9\U0001f600 \q')]""", "", [("f", {"a": 'it\'s "x" \nAé😀 \\q'})]),
    ("pythonic", '[f(a="""two\nlines""", b="")]', "", [("f", {"a": "two\nlines", "b": ""})]),
    ("pythonic", "[ f( a = 'ü日😀' , ) ]", "", [("f", {"a": "ü日😀"})]),
    ("pythonic", "[ns.f(l=[true, false, null,])]", "", [("ns.f", {"l": [True, False, None]})]),
    ("gemma", '```tool_code\nf(a="b")\n```', "", [("f", {"a": "b"})]),
    ("gemma", "I look.\n```tool_code\nf(n=1)\ng()\n```\nThere.", "I look.\n\nThere.", [("f", {"n": 1}), ("g", {})]),
    ("gemma", "```tool_code\n[f(), g()]```", "", [("f", {}), ("g", {})]),
    (
        "gemma",
        '<start_function_call>call:f{a:<escape>say "hi", {now}<escape>,n:2}<end_function_call>',
        "",
        [("f", {"a": 'say "hi", {now}', "n": 2})],
    ),
    (
        "gemma",
        "<start_function_call>call:f{}<end_function_call><start_function_call>call:g{}<end_function_call>",
        "",
        [("f", {}), ("g", {})],
    ),
    (
        "gemma",
        '<|tool_call>call:f{a:<|"|>b\\n<|"|>,l:[1,{k:<|"|>v<|"|>}],b:true,z:null,w:bare word}<tool_call|>',
        "",
        [("f", {"a": "b\\n", "l": [1, {"k": "v"}], "b": True, "z": None, "w": "bare word"})],
    ),
    (
        "gemma",
        '<|tool_call>call:f{o:{<|"|>a b<|"|>:1},"q":"\\n"}<tool_call|>',
        "",
        [("f", {"o": {"a b": 1}, "q": "\n"})],
    ),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), CALLS)
def test_literals_become_json(name: str, text: str, content: str, calls: list[tuple[str, dict]]) -> None:
    answer = put_together(FORMATS[name].parser(TOOLS), list(text))
    assert answer.content == content
    assert [(call[0], json.loads(call[1])) for call in answer.calls] == calls


# (format, text, content, calls): broken, or cut off.
BROKEN = [
    ("pythonic", "see [f(a=1)]", "see [f(a=1)]", []),
    ("pythonic", "[link](url) [1, 2]", "[link](url) [1, 2]", []),
    ("pythonic", "[f(1)]", "[f(1)]", []),
    ("pythonic", "[f(a=b)]", "b)]", [("f", '{"a": ')]),
    ("pythonic", "[f(a={1: 2})]", "1: 2})]", [("f", '{"a": {')]),
    ("pythonic", "[f(a=1), word]", ", word]", [("f", '{"a": 1}')]),
    ("pythonic", "[f(a='b", "", [("f", '{"a": "b')]),
    ("pythonic", "[f(a=[1, 2", "", [("f", '{"a": [1, 2')]),
    ("pythonic", "[f(", "[f(", []),
    ("gemma", "```tool_code\nprint(1)\n```", "```tool_code\nprint(1)\n```", []),
    ("gemma", "```python\nf(a=1)\n```", "```python\nf(a=1)\n```", []),
    ("gemma", "<start_function_call>f{}", "<start_function_call>f{}", []),
    ("gemma", "<start_function_call>call:f{a:<escape>b", "", [("f", '{"a": "b')]),
    ("gemma", "<|tool_call>call:f{a:1{b:2}<tool_call|>", "{b:2}<tool_call|>", [("f", '{"a": 1')]),
    ("gemma", "<|tool_call>call:f{a:1]}<tool_call|>", "]}<tool_call|>", [("f", '{"a": 1')]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), BROKEN)
def test_what_is_broken_or_cut_off(name: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    answer = put_together(FORMATS[name].parser(TOOLS), list(text))
    assert answer.content == content
    assert [call[:2] for call in answer.calls] == calls


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': (1, [True, None]), 'b': 'c'}", {"a": [1, [True, None]], "b": "c"}),
        (" -1e-3 ", -1e-3),
        ("'\\ud83d'", "\\ud83d"),
        ("'\\xzz'", "\\xzz"),
    ],
)
def test_a_literal_by_itself(text: str, value: object) -> None:
    assert json.loads(python_as_json(text)) == value


@pytest.mark.parametrize("text", ["", "a", "{1: 2}", "[1", "{'a'}", "1 2", "01", "f()", "[,]", "'"])
def test_what_is_no_literal(text: str) -> None:
    assert python_as_json(text) is None


def test_strings_are_passed_on_as_they_come() -> None:
    parser = FORMATS["pythonic"].parser(TOOLS)
    parser.push("[f(a='so")
    for character in "words":
        (delta,) = parser.push(character).calls
        assert delta.arguments == character
