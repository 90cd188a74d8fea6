"""Messages and fields of tools and reasoning: what is refused by its path, and what templates are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.checkpoint.call_grammar import FreeText, calls_in_text, enforced_calls
from appliance.checkpoint.chat_template import ChatTemplate
from appliance.profile import parser_names
from appliance.profile.document import check
from appliance.serving.asked import Asked
from appliance.serving.errors import ApiError
from appliance.serving.fields import IGNORED_HEADER, Ignored
from appliance.serving.messages import check_messages, with_short_ids
from appliance.serving.parsers.registry import FORMATS, REASONING
from appliance.serving.thinking import asked_switch, check_effort, thinking_variables, unread_variables
from appliance.serving.tools import MAX_BYTES, MAX_CALLS, MAX_DEPTH, check_tools

USER = {"role": "user", "content": "hi"}
# Any JSON, with the names and words that mean something here more often than others.
WORDS = st.sampled_from([
    "role", "content", "tool_calls", "tool_call_id", "id", "type", "function", "name", "arguments", "parameters",
    "text", "assistant", "tool", "user", "a", "f", "{}", "auto", "none", "required", "",
])  # fmt: skip
JSON = st.recursive(
    WORDS | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=12,
)
PROFILE: dict[str, Any] = {"name": "tiny", "model": {"path": "tiny"}}


def call(call_id: Any = "a", name: Any = "f", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def calls(*made: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(made)}


def result(call_id: str = "a") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "x"}


def checked(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return check_messages(messages, Ignored(strict=True))


def tool(name: Any = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def refusal_of(attempt: Callable[[], Any]) -> ApiError | None:
    try:
        attempt()
    except ApiError as refusal:
        return refusal
    return None


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"items": value}
    return value


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "assistant"}], "messages[0].content"),
        ([{"role": "assistant", "name": "eve"}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "assistant", "content": [{"type": "refusal", "text": "x"}]}], "messages[0].content[0].refusal"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([calls(call()), {"role": "tool", "tool_call_id": "a", "content": None}], "messages[1].content"),
        ([{"role": "assistant", "content": "x", "tool_calls": {"id": "a"}}], "messages[0].tool_calls"),
        ([calls("f()")], "messages[0].tool_calls[0]"),
        ([calls(call(call_id=None))], "messages[0].tool_calls[0].id"),
        ([calls(call(call_id=""))], "messages[0].tool_calls[0].id"),
        ([calls(call(), call())], "messages[0].tool_calls[1].id"),
        ([calls(call(type="custom"))], "messages[0].tool_calls[0].type"),
        ([calls({"id": "a", "type": "function"})], "messages[0].tool_calls[0].function"),
        ([calls(call(name=3))], "messages[0].tool_calls[0].function.name"),
        ([calls(call(arguments=3))], "messages[0].tool_calls[0].function.arguments"),
        ([calls(call()), {"role": "tool", "content": "x"}], "messages[1].tool_call_id"),
        ([USER, result()], "messages[1].tool_call_id"),
        ([calls(call()), result("b")], "messages[1].tool_call_id"),
        ([calls(call()), result(), result()], "messages[2].tool_call_id"),
        ([result(), calls(call())], "messages[0].tool_call_id"),
        ([{"role": "assistant", "content": "x", "reasoning": {}}], "messages[0].reasoning"),
        ([{"role": "assistant", "content": None, "function_call": {"name": "f"}}], "messages[0].function_call"),
        ([{"role": "function", "name": "f", "content": "x"}], "messages[0].role"),
    ],
)
def test_what_is_wrong_with_a_message_is_named_by_its_path(messages: list[dict[str, Any]], param: str) -> None:
    """In a conversation with tools, too."""
    with pytest.raises(ApiError) as refused:
        checked(*messages)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize("more", [{}, {"tool_calls": []}, {"name": "eve", "tool_calls": None}])
def test_an_answer_without_content_may_be_sent_back_as_it_came(more: dict[str, Any]) -> None:
    (message,) = checked({"role": "assistant", "content": None, **more})
    assert message["content"] == ""


def test_parts_of_text_have_the_names_of_either_api() -> None:
    """And an assistant's may be a refusal."""
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, {"type": "output_text", "text": "c"}]
    (user,) = checked({"role": "user", "content": parts})
    (assistant,) = checked({"role": "assistant", "content": [*parts, {"type": "refusal", "refusal": "d"}]})
    assert (user["content"], assistant["content"]) == ("abc", "abcd")


def test_results_belong_to_calls_in_any_order() -> None:
    """Of one message or several; an id may come again in a later turn."""
    turn = [calls(call("a"), call("b", name="g")), result("b"), result("a")]
    split = [calls(call("c")), calls(call("d")), result("c"), result("d")]
    names = [message["name"] for message in checked(*turn, *turn, *split) if message["role"] == "tool"]
    assert names == ["g", "f", "g", "f", "f", "f"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"a": {"b": [1, null]}}', {"a": {"b": [1, None]}}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ("[1]", "[1]"),
        ('{"a": ', '{"a": '),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_are_an_object_where_they_are_one(given: Any, expected: Any) -> None:
    """Templates iterate over it; what a model wrote otherwise is text, as it wrote it."""
    (message,) = checked(calls(call(arguments=given)))
    assert message["tool_calls"][0]["function"]["arguments"] == expected
    assert message["content"] == ""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"content": "x", "reasoning": "r"}, {"content": "x", "reasoning_content": "r"}),
        ({"content": "x", "reasoning": "r", "reasoning_content": "c"}, {"content": "x", "reasoning_content": "c"}),
        ({"content": None, "reasoning_content": "r"}, {"content": "", "reasoning_content": "r"}),
        ({"content": None, "refusal": "no"}, {"content": "no"}),
        ({"content": "x", "refusal": None, "function_call": None, "audio": None, "tool_calls": []}, {"content": "x"}),
    ],
)
def test_answers_may_be_sent_back_as_they_came(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """With reasoning under either name, and with empty fields."""
    assert checked({"role": "assistant", **fields}) == [{"role": "assistant", **expected}]


def test_unknown_fields_of_messages_and_tools_are_named_once() -> None:
    """Unless the profile is strict: then they are refused, each by its path."""
    messages = [{**USER, "id": 7}, {**USER, "id": 8}]
    tools = [{**tool(cache_control={}), "defer_loading": True}]
    ignored = Ignored(strict=False)
    check_messages(messages, ignored)
    check_tools(tools, None, None, ignored)
    names = "messages[].id, tools[].defer_loading, tools[].function.cache_control"
    assert ignored.headers == {IGNORED_HEADER: names}
    with pytest.raises(ApiError) as refused:
        check_messages(messages, Ignored(strict=True))
    assert refused.value.param == "messages[0].id"


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ({}, "auto", "tools"),
        ("f", None, "tools"),
        (["f"], None, "tools[0]"),
        ([{"type": "web_search"}], None, "tools[0].type"),
        ([{"type": "function"}], None, "tools[0].function"),
        ([tool(), tool()], None, "tools[1].function.name"),
        ([tool("")], None, "tools[0].function.name"),
        ([tool("a b")], None, "tools[0].function.name"),
        ([tool("a" * 65)], None, "tools[0].function.name"),
        ([tool(None)], None, "tools[0].function.name"),
        ([tool(description=3)], None, "tools[0].function.description"),
        ([tool(strict="yes")], None, "tools[0].function.strict"),
        ([tool(parameters=[])], None, "tools[0].function.parameters"),
        ([tool(parameters=nested(MAX_DEPTH + 1))], None, "tools[0].function.parameters"),
        ([tool(parameters={"x": "y" * MAX_BYTES})], None, "tools"),
        ([tool(parameters=nested(10_000))], None, "tools"),
        ([tool(str(number)) for number in range(2000)], None, "tools"),
        ([], "required", "tool_choice"),
        ([tool()], "any", "tool_choice"),
        ([tool()], {"type": "function"}, "tool_choice"),
        ([tool()], {"type": "function", "function": {"name": "g"}}, "tool_choice.function.name"),
        ([], {"type": "function", "function": {"name": "f"}}, "tool_choice"),
    ],
)
def test_what_is_wrong_with_tools_is_named_by_its_path(tools: Any, choice: Any, param: str | None) -> None:
    """However deep or long they are."""
    if param is None:
        assert check_tools(tools, choice, None, Ignored(strict=True)).tools == ()
        return
    with pytest.raises(ApiError) as refused:
        check_tools(tools, choice, None, Ignored(strict=True))
    assert (refused.value.status, refused.value.param) == (400, param)


def test_a_value_that_is_too_deep_to_show_is_refused_all_the_same() -> None:
    """Its error does not show it."""
    with pytest.raises(ApiError) as refused:
        check_tools([{"type": nested(10_000)}], None, None, Ignored(strict=True))
    assert refused.value.param == "tools"
    with pytest.raises(ApiError) as refused:
        checked({"role": "user", "content": nested(10_000)})
    assert refused.value.param == "messages[0].content"


def keeps_to(text: str, grammar: str) -> bool:
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"on": {"type": "boolean"}}, "required": ["on"]},
        {"type": ["object", "null"], "properties": {"on": {"type": "boolean"}}, "required": ["on"]},
        {
            "$ref": "#/$defs/Switch",
            "$defs": {"Switch": {"properties": {"on": {"type": "boolean"}}, "required": ["on"]}},
        },
        {"anyOf": [{"type": "string"}, {"type": "object", "required": ["on"], "properties": {"on": {"const": True}}}]},
    ],
    ids=["no-type", "two-types", "reference", "any-of"],
)
def test_arguments_are_an_object_where_their_schema_leaves_that_open(parameters: dict[str, Any]) -> None:
    """As some servers of tools omit the type. A call with a text or a number for arguments would be read as text."""
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
    enforced = check_tools([tool], "required", False, Ignored(strict=True))
    free = check_tools([tool], "auto", None, Ignored(strict=True))
    shapes = FORMATS["hermes"].shapes
    assert shapes is not None
    grammars = {
        '[{"name": "f", "arguments": %s}]': enforced_calls(enforced.enforced_calls()),
        '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>': calls_in_text(FreeText(shapes(free.tools), {})),
    }
    for call, grammar in grammars.items():
        for arguments, fits in (('{"on": true}', True), ("{}", False), ('"on"', False), ("3", False), ("null", False)):
            assert keeps_to(call % arguments, grammar) is fits, arguments


def test_a_choice_that_must_be_enforced_is_never_taken_for_a_wish() -> None:
    named = {"type": "function", "function": {"name": "f"}}
    for choice, names, most in (("required", ["f", "g"], MAX_CALLS), (named, ["f"], 1)):
        use = check_tools([tool(), tool("g")], choice, None, Ignored(strict=True))
        assert use.enforced
        grammar = enforced_calls(use.enforced_calls())
        for name in ("f", "g"):
            one = f'{{"name": "{name}", "arguments": {{}}}}'
            assert keeps_to(f"[{one}]", grammar) is (name in names)
            for count in (most, most + 1):
                assert keeps_to(f"[{', '.join([one] * count)}]", grammar) is (name in names and count == most)
    assert not check_tools([tool()], "auto", None, Ignored(strict=True)).enforced


def test_ids_are_short_for_templates_that_want_them_short() -> None:
    """The same for call and result, and unchanged where they are short already."""
    messages = with_short_ids(checked(calls(call("call_0123456789"), call("abcdefgh1")), result("call_0123456789")))
    ids = [made["id"] for made in messages[0]["tool_calls"]]
    assert ids[1] == "abcdefgh1"
    assert len(ids[0]) == 9
    assert ids[0].isalnum()
    assert messages[1]["tool_call_id"] == ids[0]


@pytest.mark.parametrize(
    ("template", "effort", "enabled", "given", "expected"),
    [
        ("{{ enable_thinking }}", None, None, {}, {}),
        ("{{ enable_thinking }}", "none", None, {}, {"enable_thinking": False}),
        ("{{ enable_thinking }}", "minimal", None, {}, {"enable_thinking": False}),
        ("{{ enable_thinking }}", "low", None, {}, {"enable_thinking": True}),
        ("{{ enable_thinking }}", "high", False, {}, {"enable_thinking": False}),
        ("{{ thinking }}", "high", None, {}, {"thinking": True}),
        ("{{ thinking }}", None, None, {"enable_thinking": True}, {"thinking": True, "enable_thinking": True}),
        ("{{ enable_thinking }}", "high", None, {"enable_thinking": False}, {"enable_thinking": False}),
        ("{{ reasoning_effort }}", "none", None, {}, {"reasoning_effort": "low"}),
        ("{{ reasoning_effort }}", "medium", None, {}, {"reasoning_effort": "medium"}),
        ("{{ reasoning_effort }}", "xhigh", None, {}, {"reasoning_effort": "high"}),
        ("{{ reasoning_effort == 'max' }}", "max", None, {}, {"reasoning_effort": "max"}),
        ("{{ thinking }}{{ reasoning_effort }}", "none", None, {}, {"thinking": False}),
        ("{{ thinking }}{{ reasoning_effort }}", "low", None, {}, {"thinking": True, "reasoning_effort": "low"}),
        ("{% set thinking = 1 %}{{ thinking }}", None, None, {}, {}),
    ],
)
def test_reasoning_is_switched_as_the_template_reads_it(
    template: str, effort: str | None, enabled: bool | None, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    asked = Asked("reasoning_effort", effort) if effort is not None else None
    switch = asked_switch({"enable_thinking": enabled}, given)
    variables = thinking_variables(asked, switch, given, ChatTemplate(template, "test", {}), Ignored(strict=True))
    assert variables == expected


@pytest.mark.parametrize("given", ["no", "false", 0, {}])
def test_a_switch_that_a_template_would_take_for_true_is_refused(given: Any) -> None:
    with pytest.raises(ApiError) as refused:
        asked_switch({}, {"enable_thinking": given})
    assert refused.value.param == "chat_template_kwargs.enable_thinking"


def test_an_effort_that_no_template_reads_is_ignored_and_named() -> None:
    """Clients send it to every model; an unknown one is refused."""
    template = ChatTemplate("{{ messages }}", "test", {})
    ignored = Ignored(strict=True)
    effort, enabled = Asked("reasoning.effort", "low"), Asked("enable_thinking", True)
    assert thinking_variables(effort, enabled, {}, template, ignored) == {}
    assert ignored.headers == {IGNORED_HEADER: "reasoning.effort, enable_thinking"}
    with pytest.raises(ApiError) as refused:
        check_effort("a lot", "reasoning_effort")
    assert refused.value.param == "reasoning_effort"


@pytest.mark.parametrize(
    ("template", "given", "unread"),
    [
        ("{{ messages }}{{ colour }}", {"colour": "red", "color": "red"}, ["color"]),
        ("{{ thinking }}", {"enable_thinking": False}, []),
        ("{{ messages }}", {"enable_thinking": False}, ["enable_thinking"]),
    ],
)
def test_variables_that_the_template_does_not_read_are_found(
    template: str, given: dict[str, Any], unread: list[str]
) -> None:
    assert unread_variables(given, ChatTemplate(template, "test", {})) == unread


@pytest.mark.parametrize(
    ("key", "names", "formats"),
    [
        ("tool-call-parser", parser_names.TOOL_CALLS, FORMATS),
        ("reasoning-parser", parser_names.REASONING, REASONING),
    ],
)
def test_a_profile_may_choose_every_parser_that_there_is(key: str, names: tuple[str, ...], formats: Any) -> None:
    """And no other: an unknown name is refused with the list."""
    assert sorted(names) == sorted(formats)
    for name in ("auto", "none", *names):
        assert check({**PROFILE, key: name}) == []
    (problem,) = check({**PROFILE, key: "hermes2"})
    assert problem.field == key
    assert all(name in str(problem) for name in names)


@settings(max_examples=300, deadline=None)
@given(messages=st.lists(st.dictionaries(WORDS, JSON, max_size=6), max_size=3), tools=JSON, choice=JSON)
def test_anything_else_is_refused_too(messages: list[dict[str, Any]], tools: Any, choice: Any) -> None:
    """By a path in the request, never by an exception of ours."""
    for root, attempt in (
        ("messages", lambda: check_messages(messages, Ignored(strict=True))),
        ("tool", lambda: check_tools(tools, choice, None, Ignored(strict=True))),
    ):
        refusal = refusal_of(attempt)
        assert refusal is None or (refusal.status == 400 and (refusal.param or "").startswith(root))
