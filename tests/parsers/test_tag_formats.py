"""Formats whose parameters are text between tags: which JSON they become."""

from __future__ import annotations

import json

import pytest

from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.parameters import as_json, types_of
from appliance.serving.parsers.registry import FORMATS
from tests.parsers.parsing import TOOLS, put_together

QWEN = """<tool_call>
<function=f>
<parameter=a>
two
 lines <b>
</parameter>
<parameter=n>
5
</parameter>
<parameter=o>
{"k": [1, null]}
</parameter>
</function>
</tool_call>"""
DSML = """

<｜DSML｜{around}>
<｜DSML｜invoke name="f">
<｜DSML｜parameter name="a" string="true">5</｜DSML｜parameter>
<｜DSML｜parameter name="n" string="false">5</｜DSML｜parameter>
<｜DSML｜parameter name="x">0.5</｜DSML｜parameter>
</｜DSML｜invoke>
<｜DSML｜invoke name="g">
</｜DSML｜invoke>
</｜DSML｜{around}>"""
MINIMAX = """<minimax:tool_call>
<invoke name="f">
<parameter name="a">é "quoted"</parameter>
<parameter name="l">[1, "two"]</parameter>
</invoke>
<invoke name="g">
</invoke>
</minimax:tool_call>"""
GLM = """<tool_call>f
<arg_key>a</arg_key>
<arg_value>2024</arg_value>
<arg_key>b</arg_key>
<arg_value>true</arg_value>
</tool_call>"""

CALLS = [
    ("qwen3-coder", QWEN, "", [("f", {"a": "two\n lines <b>", "n": 5, "o": {"k": [1, None]}})]),
    (
        "qwen3-coder",
        f"See:\n{QWEN}\n{QWEN}\n",
        "See:",
        [("f", {"a": "two\n lines <b>", "n": 5, "o": {"k": [1, None]}})] * 2,
    ),
    ("qwen3-coder", "<tool_call><function=g></function></tool_call> so", "so", [("g", {})]),
    ("qwen3-coder", "<function=f><parameter=a>b</parameter></function></tool_call>", "", [("f", {"a": "b"})]),
    (
        "qwen3-coder",
        "<function=new><parameter=n>5</parameter><parameter=l>[5]</parameter></function>",
        "",
        [("new", {"n": "5", "l": [5]})],
    ),
    ("qwen3-coder", "<tool_call><function=f><parameter=a>b</parameter></tool_call> so", "so", [("f", {"a": "b"})]),
    ("dsml", "Hm." + DSML.replace("{around}", "tool_calls"), "Hm.", [("f", {"a": "5", "n": 5, "x": 0.5}), ("g", {})]),
    ("dsml", DSML.replace("{around}", "function_calls"), "", [("f", {"a": "5", "n": 5, "x": 0.5}), ("g", {})]),
    (
        "dsml",
        DSML.replace("{around}", "toolcalls") + "\n\nDone",
        "Done",
        [("f", {"a": "5", "n": 5, "x": 0.5}), ("g", {})],
    ),
    (
        "dsml",
        '<｜DSML｜invoke name="f"><｜DSML｜parameter name="o" string="false">{k}</｜DSML｜parameter></｜DSML｜invoke>',
        "",
        [("f", {"o": "{k}"})],
    ),
    ("minimax-m2", MINIMAX, "", [("f", {"a": 'é "quoted"', "l": [1, "two"]}), ("g", {})]),
    ("minimax-m2", f"One\n{MINIMAX}\nTwo", "One\n\nTwo", [("f", {"a": 'é "quoted"', "l": [1, "two"]}), ("g", {})]),
    ("glm-4.5", GLM, "", [("f", {"a": "2024", "b": True})]),
    ("glm-4.5", GLM.replace("\n", "") + "<tool_call>g</tool_call>", "", [("f", {"a": "2024", "b": True}), ("g", {})]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), CALLS)
def test_parameters_become_json_by_the_schema(
    name: str, text: str, content: str, calls: list[tuple[str, dict]]
) -> None:
    answer = put_together(FORMATS[name].parser(TOOLS), list(text))
    assert answer.content == content
    assert [(call[0], json.loads(call[1])) for call in answer.calls] == calls


BROKEN = [
    ("qwen3-coder", "<tool_call>text</tool_call>", "<tool_call>text</tool_call>", []),
    ("qwen3-coder", "<tool_call>\n<function=>", "<tool_call>\n<function=>", []),
    ("qwen3-coder", "<function=f>text", "<function=f>text", []),
    ("qwen3-coder", "<function=f><parameter=a>b</parameter>text</function>", "text</function>", [("f", '{"a": "b"')]),
    ("qwen3-coder", "<function=f><parameter=a>b</para", "", [("f", '{"a": "b</para')]),
    ("qwen3-coder", "<function=f><parameter=n>5", "", [("f", '{"n": "5')]),
    ("qwen3-coder", "<tool_call>\n<function=f>\n", "", [("f", "")]),
    ("qwen3-coder", "<tool_call>\n<function=f", "<tool_call>\n<function=f", []),
    ("minimax-m2", '<invoke name="f">', '<invoke name="f">', []),
    ("minimax-m2", '<minimax:tool_call><invoke name="f" x>', '<minimax:tool_call><invoke name="f" x>', []),
    ("dsml", "<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>", "<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>", []),
    ("dsml", '<｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="true">b', "", [("f", '{"a": "b')]),
    ("glm-4.5", "<tool_call></tool_call>", "<tool_call></tool_call>", []),
    ("glm-4.5", '<tool_call>{"name": "f"}</tool_call>', '<tool_call>{"name": "f"}</tool_call>', []),
    ("glm-4.5", "<tool_call>f\n<arg_key>a</arg_key>b", "<tool_call>f\n<arg_key>a</arg_key>b", []),
    ("glm-4.5", "<tool_call>f<arg_key>a</arg_key><arg_value>b</arg_value> c", "c", [("f", '{"a": "b"')]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), BROKEN)
def test_what_is_broken_or_cut_off_in_tags(name: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    answer = put_together(FORMATS[name].parser(TOOLS), list(text))
    assert answer.content == content
    assert [call[:2] for call in answer.calls] == calls


def test_each_parameter_is_passed_on_once_it_is_complete() -> None:
    parser = FORMATS["qwen3-coder"].parser(TOOLS)
    parser.push("<tool_call><function=f><parameter=a>b")
    (delta,) = parser.push("</parameter>").calls
    assert delta.arguments == '"b"'
    parser.push("<parameter=n>12")
    (delta,) = parser.push("</parameter>").calls
    assert delta.arguments == "12"


@pytest.mark.parametrize(
    ("value", "types", "converted"),
    [
        ("5", {"string"}, "5"),
        ("5", {"integer"}, 5),
        (" 5\n", {"integer"}, 5),
        ("5.0", {"integer"}, 5.0),
        ("5.5", {"integer"}, "5.5"),
        ("007", {"integer"}, "007"),
        ("5.5", {"number"}, 5.5),
        ("-1e3", {"number"}, -1000.0),
        ("NaN", {"number"}, "NaN"),
        ("1_0", {"number"}, "1_0"),
        ("True", {"boolean"}, True),
        ("false", {"boolean"}, False),
        ("yes", {"boolean"}, "yes"),
        ("null", {"null", "string"}, None),
        ("None", {"null"}, None),
        ("null", {"string"}, "null"),
        ("5", {"string", "integer"}, 5),
        ("five", {"string", "integer"}, "five"),
        ('{"a": [1]}', {"object"}, {"a": [1]}),
        ("{'a': True}", {"object"}, {"a": True}),
        ("{a}", {"object"}, "{a}"),
        ("[1]", {"object"}, "[1]"),
        ("[1]", {"object", "array"}, [1]),
        ('{"a": 1}', {"string"}, '{"a": 1}'),
        ("5", set(), "5"),
        ('["5"]', set(), ["5"]),
        ("", {"integer"}, ""),
        ("9" * 5000, {"string"}, "9" * 5000),
    ],
)  # fmt: skip
def test_a_value_is_what_its_schema_says_or_else_a_string(value: str, types: set[str], converted: object) -> None:
    assert json.loads(as_json(value, types)) == converted


ROOT = {
    "$defs": {
        "count": {"type": "integer"},
        "self": {"anyOf": [{"$ref": "#/$defs/self"}, {"type": "null"}]},
        "a/b": {"type": "array"},
    }
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"anyOf": [{"type": "integer"}, {"oneOf": [{"type": "null"}]}]}, {"integer", "null"}),
        ({"allOf": [{"$ref": "#/$defs/count"}]}, {"integer"}),
        ({"$ref": "#/$defs/self"}, {"null"}),
        ({"$ref": "#/$defs/a~1b"}, {"array"}),
        ({"$ref": "#/nowhere/at/all"}, set()),
        ({"$ref": "#/$defs/count/type/deeper"}, set()),
        ({"enum": [1, "a", None, 0.5, True]}, {"integer", "string", "null", "number", "boolean"}),
        ({"const": {}}, {"object"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"type": 5, "anyOf": "x", "enum": 1, "$ref": 2}, set()),
        ({}, set()),
        (True, set()),
        (None, set()),
    ],
)
def test_the_types_that_a_schema_allows(schema: object, types: set[str]) -> None:
    assert types_of(schema, ROOT) == types


@pytest.mark.parametrize("parameters", [{}, {"properties": []}, {"properties": {"a": 5}}, {"properties": {"a": True}}])
def test_a_schema_that_says_nothing_makes_strings(parameters: dict) -> None:
    parser = FORMATS["qwen3-coder"].parser([Tool("f", parameters=parameters)])
    answer = put_together(parser, ["<function=f><parameter=a>1</parameter></function>"])
    assert answer.calls[0][1] == '{"a": "1"}'
