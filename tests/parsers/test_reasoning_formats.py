"""Reasoning, apart from content and calls: between markers, and in harmony."""

from __future__ import annotations

import pytest

from appliance.serving.parsers.plain import PlainParser
from appliance.serving.parsers.reasoning import MarkedReasoning
from appliance.serving.parsers.registry import FORMATS, REASONING
from tests.parsers.parsing import TOOLS, Answer, put_together

MARKED = {name: chosen for name, chosen in REASONING.items() if isinstance(chosen, MarkedReasoning)}

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
DSML_CALL = '<｜DSML｜tool_calls><｜DSML｜invoke name="g"></｜DSML｜invoke></｜DSML｜tool_calls>'
KIMI_CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>"
)


def read(name: str, text: str, *, tools: str = "", opened: bool = False, separate: bool = True) -> Answer:
    inner = FORMATS[tools].parser(TOOLS) if tools else PlainParser()
    return put_together(REASONING[name].parser(inner, opened=opened, separate=separate), list(text))


@pytest.mark.parametrize(
    ("name", "text", "reasoning", "content"),
    [
        ("think", "<think>\nWhy? \n</think>\n\nSo.\n", "Why?", "So.\n"),
        ("think", "\n<think>a</think>b", "a", "b"),
        ("think", "<think></think>b", "", "b"),
        ("think", "<think>never <b> ended </thin", "never <b> ended </thin", ""),
        ("think", "No <think>thought</think>", "", "No <think>thought</think>"),
        ("think", "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        ("mistral", "[THINK]é[/THINK]So", "é", "So"),
        ("kimi", "◁think▷a◁/think▷b", "a", "b"),
        ("kimi-k2", "<think>a</think>b", "a", "b"),
        ("dsml", "<think>a</think>b", "a", "b"),
        ("granite", "Here is my thought process: a Here is my response: b", "a", "b"),
        ("granite", "Here's my thought process: a Here's my response: b", "a", "b"),
        ("granite", "<think>a</think>b", "a", "b"),
        ("minimax-m2", "<think>a</think>b <think> c</think>d", "ac", "b d"),
        ("gemma4", "<|channel>thought\na<channel|>b", "a", "b"),
    ],
)
def test_reasoning_between_markers(name: str, text: str, reasoning: str, content: str) -> None:
    assert read(name, text) == (content, (), reasoning)


@pytest.mark.parametrize("name", MARKED)
def test_reasoning_that_the_prompt_has_opened(name: str) -> None:
    begin, end = next(iter(MARKED[name].pairs.items()))
    assert read(name, f"\na{end}b", opened=True) == ("b", (), "a")
    assert read(name, f"{begin}a{end}b", opened=True) == ("b", (), "a"), "the model repeats the marker"
    assert read(name, "a ", opened=True) == ("", (), "a "), "it never ends"
    assert REASONING[name].opened_by(f"user: hi\nassistant: {begin}\n")
    assert not REASONING[name].opened_by(f"user: hi\nassistant: {begin}{end}")


@pytest.mark.parametrize("name", REASONING)
@pytest.mark.parametrize("opened", [True, False])
def test_all_passes_through_as_content(name: str, opened: bool) -> None:
    begin, end = next(iter(MARKED[name].pairs.items())) if name in MARKED else ("x", "y")
    text = f"{'' if opened else begin}\n a \n{end}\n\nb "
    assert read(name, text, opened=opened, separate=False) == (text, (), "")


def test_reasoning_and_then_calls() -> None:
    answer = read("think", f"<think>Is {CALL} right?</think>\n\nYes. {CALL}", tools="hermes")
    assert answer == ("Yes.", (("f", "{}", ""),), f"Is {CALL} right?")


def test_without_separation_calls_are_read_behind_the_reasoning_only() -> None:
    answer = read("think", f"<think>{CALL}</think>{CALL}", tools="hermes", separate=False)
    assert answer == (f"<think>{CALL}</think>", (("f", "{}", ""),), "")


@pytest.mark.parametrize(("name", "call"), [("dsml", DSML_CALL), ("kimi-k2", KIMI_CALL)])
def test_a_call_ends_reasoning(name: str, call: str) -> None:
    answer = read(name, f"<think>I call.\n\n{call}", tools=name)
    assert (answer.content, answer.reasoning, len(answer.calls)) == ("", "I call.", 1)


@pytest.mark.parametrize("call", [
    DSML_CALL, DSML_CALL.replace("tool_calls", "toolcalls"), DSML_CALL.replace("tool_calls", "tool"),
    '<｜DSML｜invoke name="g"></｜DSML｜invoke>',
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="g">\n\n</｜DSML｜invoke>',
])  # fmt: skip
@pytest.mark.parametrize("opened", [True, False])
def test_reasoning_that_ends_behind_its_calls_leaves_no_mark(call: str, opened: bool) -> None:
    """Models close what they had open when they called; what they say then is the answer."""
    answer = read(
        "dsml", f"{'' if opened else '<think>'}I call.\n\n{call}\n</think>\n\nDone.", tools="dsml", opened=opened
    )
    assert (answer.content, answer.reasoning) == ("Done.", "I call.")
    assert [found[0] for found in answer.calls] == ["g"]


def test_the_end_of_reasoning_within_a_call_is_a_part_of_it() -> None:
    parameter = '<｜DSML｜parameter name="a" string="true">a</think>b</｜DSML｜parameter>'
    call = f'<｜DSML｜tool_calls><｜DSML｜invoke name="f">{parameter}</｜DSML｜invoke></｜DSML｜tool_calls>'
    answer = read("dsml", f"<think>I call.{call}</think>So.", tools="dsml")
    assert answer == ("So.", (("f", '{"a": "a</think>b"}', ""),), "I call.")


def test_interleaved_reasoning_leaves_a_call_alone() -> None:
    parameter = '<parameter name="a"><think>b</think></parameter>'
    call = f'<minimax:tool_call><invoke name="f">{parameter}</invoke></minimax:tool_call>'
    answer = read("minimax-m2", f"<think>one</think>{call}<think>two</think>", tools="minimax-m2")
    assert answer == ("", (("f", '{"a": "<think>b</think>"}', ""),), "onetwo")


def harmony(channel: str, body: str, end: str = "<|end|>", start: str = "<|start|>assistant") -> str:
    return f"{start}<|channel|>{channel}<|message|>{body}{end}"


F = "commentary to=functions.f <|constrain|>json"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (harmony("analysis", "Why?", start="") + harmony("final", "So. ", "<|return|>"), Answer("So. ", (), "Why?")),
        (harmony("final", "So."), Answer("So.")),
        (harmony("analysis", "a", start="") + harmony("analysis", "b"), Answer("", (), "a\nb")),
        (
            harmony("commentary", "I look.", start="") + harmony(F, '{"a": 1}', "<|call|>"),
            Answer("I look.", (("f", '{"a": 1}', ""),)),
        ),
        (
            harmony(F, "{}", "<|call|>") + harmony("commentary to=functions.g json", "{}", "<|call|>"),
            Answer("", (("f", "{}", ""), ("g", "{}", ""))),
        ),
        (
            '<|start|>assistant to=functions.f<|channel|>commentary<|message|>{"a": "<|"}<|call|>',
            Answer("", (("f", '{"a": "<|"}', ""),)),
        ),
        (" to=functions.f<|channel|>commentary json<|message|>{}<|call|>", Answer("", (("f", "{}", ""),))),
        (harmony(F, "", "<|call|>"), Answer("", (("f", "{}", ""),))),
        (
            harmony("analysis to=browser.search", '{"q": 1}', "<|call|>"),
            Answer("", (("browser.search", '{"q": 1}', ""),)),
        ),
        (harmony("analysis", "a <|", ""), Answer("", (), "a <|")),
        (harmony(F, '{"a": "b', ""), Answer("", (("f", '{"a": "b', ""),))),
        (harmony(F, "", ""), Answer("", (("f", "", ""),))),
        (harmony(F, '{"a": }', "<|call|>"), Answer("}<|call|>", (("f", '{"a": ', ""),))),
        (harmony("analysis", "a", "") + harmony("final", "b", ""), Answer("b", (), "a")),
        (harmony("analysis", "a") + "<|start|>assistant<|channel|>fin", Answer("", (), "a")),
        (harmony("analysis", "a") + "<|start|>", Answer("", (), "a")),
        ("Hello.", Answer("Hello.")),
        (" Hello. ", Answer(" Hello. ")),
        ("<|channel|>!<|message|>b", Answer("<|channel|>!<|message|>b")),
        (harmony(F, "print(1)", "<|call|>", ""), Answer(f"<|channel|>{F}<|message|>print(1)<|call|>")),
        (harmony("final", "a") + "b" + harmony("final", "c"), Answer("ab\nc")),
    ],
)
@pytest.mark.parametrize("over", [True, False])
def test_harmony(text: str, expected: Answer, over: bool) -> None:
    parser = FORMATS["gpt-oss"].parser(TOOLS)
    if over:
        parser = REASONING["gpt-oss"].parser(parser)
    assert put_together(parser, list(text)) == expected


def test_harmony_without_tools_or_separation() -> None:
    call = harmony(F, "{}", "<|call|>")
    text = harmony("analysis", "a", start="") + harmony("final", "b")
    assert read("gpt-oss", text + call) == (f"b{call}", (), "a")
    assert read("gpt-oss", text, separate=False) == ("a\nb", (), "")
    assert read("gpt-oss", text + call, tools="gpt-oss", separate=False) == ("a\nb", (("f", "{}", ""),), "")
