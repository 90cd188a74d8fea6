"""Formats whose arguments are JSON in the model's own words."""

from __future__ import annotations

import json

import pytest

from appliance.serving.parsers.registry import FORMATS
from tests.parsers.parsing import TOOLS, put_together

NESTED = '{"a": {"b": [1, {"c": "}]</tool_call>"}, null, true, -1.5e3]}}'
ESCAPES = r'{"a": "line\n\"quoted\" \u00e9 \ud83d\ude00 back\\slash", "b": "日本 😀"}'

# (format, text, content, calls as name and arguments)
CALLS = [
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>', "", [("f", '{"a": "b"}')]),
    ("hermes", f'<tool_call>{{"name": "f", "arguments": {NESTED}}}</tool_call>', "", [("f", NESTED)]),
    ("hermes", f'<tool_call>{{"name": "f", "arguments": {ESCAPES}}}</tool_call>', "", [("f", ESCAPES)]),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"id": 7, "name": "f", "parameters": {}, "x": [{}]}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "unknown\\ntöol", "arguments": {}}</tool_call>', "", [("unknown\ntöol", "{}")]),
    ("hermes", '<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>', "", [("f", "{}"), ("g", "{}")]),
    (
        "hermes",
        'Let me see.\n<tool_call>{"name": "f"}</tool_call>\n<tool_call>\n{"name": "g"}\n</tool_call>\nBoth.\n',
        "Let me see.\n\nBoth.\n",
        [("f", "{}"), ("g", "{}")],
    ),
    ("hermes", '\n\n<tool_call>{"name": "f"}</tool_call>\n\n', "", [("f", "{}")]),
    ("hermes", 'One <tool_call>{"name": "f"}</tool_call>\n', "One", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call> Two ', "Two ", [("f", "{}")]),
    ("llama3-json", '{"name": "f", "parameters": {"a": "b"}}', "", [("f", '{"a": "b"}')]),
    ("llama3-json", '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", "{}")]),
    (
        "llama3-json",
        '{"type": "function", "name": "f", "parameters": {"a": 1}}; {"name": "g", "arguments": {}}',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    ("llama3-json", '{"name": "f", "parameters": {}}\n{"name": "g", "parameters": {}}', "", [("f", "{}"), ("g", "{}")]),
    ("llama3-json", '<|python_start|>{"name": "f", "parameters": {}}<|python_end|>', "", [("f", "{}")]),
    ("llama3-json", 'Sure: {"name": "f", "parameters": {}}; done', "Sure: ; done", [("f", "{}")]),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "123456789"}]', "", [("f", '{"a": 1}')]),
    ("mistral", '[TOOL_CALLS] [{"name": "f"}, {"name": "g"}]', "", [("f", "{}"), ("g", "{}")]),
    ("mistral", 'Hm.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', "Hm.", [("f", '{"a": 1}'), ("g", "{}")]),
    ("mistral", '[TOOL_CALLS]f{"a": 1}', "", [("f", '{"a": 1}')]),
    (
        "deepseek-v3",
        (
            "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
            '{"a": "```"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```'
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        "Hm.",
        [("f", '{"a": "```"}'), ("g", "{}")],
    ),
    (
        "deepseek-v3.1",
        (
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
            "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    ("deepseek-v3.1", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>", "", [("f", "{}")]),
    (
        "kimi-k2",
        (
            "Hm. <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
            '{"a": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|> {}'
            "<|tool_call_end|><|tool_calls_section_end|>"
        ),
        "Hm.",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    (
        "nemotron",
        '<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]</TOOLCALL>',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    ("granite", '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]', "", [("f", '{"a": 1}')]),
    ("granite", '<tool_call>[{"name": "f"}]</tool_call>', "", [("f", "{}")]),
    ("granite", '<function_call> {"name": "f"}\n<function_call> {"name": "g"}', "", [("f", "{}"), ("g", "{}")]),
    (
        "phi-4-mini",
        'functools[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    ("phi-4-mini", '<|tool_call|>[{"name": "f"}]<|/tool_call|>', "", [("f", "{}")]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), CALLS)
def test_calls_and_the_text_around_them(name: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    answer = put_together(FORMATS[name].parser(TOOLS), list(text))
    assert answer.content == content
    assert [call[:2] for call in answer.calls] == calls
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)


# (format, text, content, calls): what is wrong before arguments have begun is content; afterwards, from there on.
BROKEN = [
    ("hermes", "<tool_call>no call</tool_call>", "<tool_call>no call</tool_call>", []),
    (
        "hermes",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        [],
    ),
    ("hermes", '<tool_call>{"name": ""}</tool_call>', '<tool_call>{"name": ""}</tool_call>', []),
    ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>', '<tool_call>{"arguments": {"a": 1}}</tool_call>', []),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}', '<tool_call>{"name": "f", "arguments": [1]}', []),
    ("hermes", '<tool_call>{"name": "f", "arguments": "no"}', '<tool_call>{"name": "f", "arguments": "no"}', []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": tru}}</tool_call>', "}}</tool_call>", [("f", '{"a": tru')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}</tool_call>', "</tool_call>", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f"}} more', "} more", [("f", "{}")]),
    ("hermes", '<tool_call>\n<tool_call>{"name": "f"}</tool_call>', "<tool_call>", [("f", "{}")]),
    ("hermes", '<tool_call>x\n<tool_call>{"name": "f"}</tool_call>', "<tool_call>x", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\n"}}', '"}}', [("f", '{"a": "')]),
    ("llama3-json", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
    ("llama3-json", '{"name": "Bob"}', '{"name": "Bob"}', []),
    ("llama3-json", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    ("llama3-json", 'if (a) { b(); } {"k": [{}]}', 'if (a) { b(); } {"k": [{}]}', []),
    ("mistral", "[TOOL_CALLS]a b", "[TOOL_CALLS]a b", []),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a" 1}', "1}", [("f", '{"a" ')]),
    ("deepseek-v3", "<｜tool▁calls▁begin｜>text", "<｜tool▁calls▁begin｜>text", []),
    (
        "deepseek-v3",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{}",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{}",
        [],
    ),
    ("deepseek-v3.1", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{} and", "and", [("f", "{}")]),
    ("kimi-k2", "<|tool_call_begin|>functions.f:0 {}", "<|tool_call_begin|>functions.f:0 {}", []),
    ("nemotron", '<TOOLCALL>[{"name": "f"}, 5]</TOOLCALL>', ", 5]</TOOLCALL>", [("f", "{}")]),
    ("granite", "<|tool_call|>[]", "<|tool_call|>[]", []),
    ("phi-4-mini", "import functools[x]", "import functools[x]", []),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), BROKEN)
def test_what_is_no_call_is_content(name: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    answer = put_together(FORMATS[name].parser(TOOLS), list(text))
    assert answer.content == content
    assert [call[:2] for call in answer.calls] == calls


CUT = [
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', "", [("f", '{"a": "b')]),
    ("hermes", '<tool_call>{"name": "f", "arg', "", [("f", "")]),
    ("hermes", '<tool_call>{"na', '<tool_call>{"na', []),
    ("hermes", "See <tool_ca", "See <tool_ca", []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}', "", [("f", "{}")]),
    ("llama3-json", '{"name": "Bob"', '{"name": "Bob"', []),
    ("llama3-json", '{"name": "f", "parameters": {"a": [1', "", [("f", '{"a": [1')]),
    ("mistral", "[TOOL_CALLS]get_wea", "[TOOL_CALLS]get_wea", []),
    ("mistral", "[TOOL_CALLS]f[ARGS]", "", [("f", "")]),
    ("deepseek-v3.1", '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a"', "", [("f", '{"a"')]),
    ("kimi-k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", "", [("f", "")]),
    ("phi-4-mini", 'functools[{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), CUT)
def test_a_call_that_is_cut_off_keeps_what_came(
    name: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    answer = put_together(FORMATS[name].parser(TOOLS), list(text))
    assert answer.content == content
    assert [call[:2] for call in answer.calls] == calls


OPENED = {
    "hermes": '<tool_call>{"name": "f", "arguments": ',
    "llama3-json": '{"name": "f", "parameters": ',
    "mistral": "[TOOL_CALLS]f[ARGS]",
    "deepseek-v3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n",
    "deepseek-v3.1": "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
    "kimi-k2": "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>",
    "gpt-oss": "<|channel|>commentary to=functions.f<|message|>",
    "nemotron": '<TOOLCALL>[{"name": "f", "arguments": ',
    "granite": '<|tool_call|>[{"name": "f", "arguments": ',
    "phi-4-mini": 'functools[{"name": "f", "arguments": ',
}


@pytest.mark.parametrize("name", OPENED)
def test_arguments_in_json_are_passed_on_as_they_come(name: str) -> None:
    parser = FORMATS[name].parser(TOOLS)
    parser.push(OPENED[name])
    for character in '{"a": "b c", "n": [1':
        (delta,) = parser.push(character).calls
        assert delta.arguments == character


@pytest.mark.parametrize(
    ("name", "text", "call_id"),
    [
        ("kimi-k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}", "functions.f:0"),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}", "123456789"),
        ("hermes", '<tool_call>{"name": "f", "id": "call_1"}', ""),
    ],
)
def test_ids_that_later_turns_need_are_kept(name: str, text: str, call_id: str) -> None:
    (call,) = put_together(FORMATS[name].parser(TOOLS), list(text)).calls
    assert call == ("f", "{}", call_id)
