"""DeepSeek's prompts: composed by hand from the published encoders' rules, and the revision that a folder says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from appliance.checkpoint.chat_format import load_chat_format
from appliance.checkpoint.chat_template import ChatTemplate, TemplateError
from appliance.checkpoint.encoders import ENCODERS, choose
from appliance.checkpoint.encoders.base import Encoder
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.tokenizer import Tokenizer as OurTokenizer
from appliance.profile import parser_names
from appliance.serving.parsers.base import Tool
from appliance.serving.parsers.registry import FORMATS
from tests.parsers.parsing import put_together

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
V32, APRIL, JULY = "deepseek-v3.2", "deepseek-v4-april", "deepseek-v4-0731"
V4 = (APRIL, JULY)
WEATHER: dict[str, Any] = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "description": "Wetter für eine Stadt",
}
WEATHER_JSON = (
    '{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}, '
    '"description": "Wetter für eine Stadt"}'
)
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": {"name": "now"}}]
V4_TOOLS = f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{WEATHER_JSON}
{{"name": "now"}}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""  # noqa: E501
V32_TOOLS = f"""## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:
<｜DSML｜function_calls>
...
</｜DSML｜function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
{WEATHER_JSON}
{{"name": "now"}}
</functions>
"""  # noqa: E501
ABSOLUTE = "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
BEYOND = "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"


def system(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "system", "content": content, **more}


def user(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def assistant(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def encoder(name: str) -> Encoder:
    return ENCODERS[name]("test")


def prompt(name: str, *messages: dict[str, Any], **variables: Any) -> str:
    text = encoder(name).render(messages, **variables)
    assert text.startswith(BOS)
    return text.removeprefix(BOS)


TALK = (system("Be brief."), user("1+1?"), assistant("2", reasoning_content="Easy."), user("2+2?"))


@pytest.mark.parametrize("name", V4)
@pytest.mark.parametrize(
    ("variables", "answer"),
    [({}, "<think>"), ({"thinking": True}, "<think>"), ({"enable_thinking": False}, "</think>"),
     ({"thinking": False, "reasoning_effort": "max"}, "</think>"), ({"reasoning_effort": "none"}, "</think>")],
)  # fmt: skip
def test_v4_drops_old_reasoning(name: str, variables: dict[str, Any], answer: str) -> None:
    talk = f"Be brief.<｜User｜>1+1?<｜Assistant｜></think>2{EOS}<｜User｜>2+2?<｜Assistant｜>"
    assert prompt(name, *TALK, **variables) == talk + answer


@pytest.mark.parametrize("name", V4)
def test_v4_keeps_reasoning_where_it_is_wanted_or_there_are_tools(name: str) -> None:
    talk = f"<｜User｜>1+1?<｜Assistant｜><think>Easy.</think>2{EOS}<｜User｜>2+2?<｜Assistant｜><think>"
    assert prompt(name, *TALK, drop_thinking=False) == f"Be brief.{talk}"
    assert prompt(name, *TALK, tools=TOOLS) == f"Be brief.\n\n{V4_TOOLS}{talk}"
    assert prompt(name, *TALK[1:], tools=TOOLS) == f"\n\n{V4_TOOLS}{talk}"
    assert prompt(name, *TALK[1:], tools=TOOLS, thinking=False) == (
        f"\n\n{V4_TOOLS}<｜User｜>1+1?<｜Assistant｜></think>2{EOS}<｜User｜>2+2?<｜Assistant｜></think>"
    )


def test_v4_results_are_a_users_turn_in_the_order_of_the_calls() -> None:
    made = [call("a", "weather", '{"city": "Köln", "days": 2}'), call("b", "now", {"zone": None, "l": [1, {"k": "é"}]})]
    answer = assistant("I look.", reasoning_content="Two calls.", tool_calls=made)
    messages = (user("Weather?"), answer, result("b", "noon"), result("a", "rain"), user("And?"))
    assert prompt(JULY, *messages) == (
        "<｜User｜>Weather?<｜Assistant｜></think>I look.\n\n"
        "<｜DSML｜tool_calls>\n"
        '<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Köln</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="now">\n'
        '<｜DSML｜parameter name="zone" string="false">null</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="l" string="false">[1, {"k": "é"}]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        f"</｜DSML｜tool_calls>{EOS}"
        "<｜User｜><tool_result>rain</tool_result>\n\n<tool_result>noon</tool_result>\n\nAnd?<｜Assistant｜><think>"
    )


def test_v4_writes_a_call_without_arguments_and_one_whose_arguments_are_no_object() -> None:
    talk = prompt(JULY, user("x"), assistant(None, tool_calls=[call("a", "now", "{}"), call("b", "f", "[1")]))
    assert '<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>\n' in talk
    assert '\n<｜DSML｜parameter name="arguments" string="true">[1</｜DSML｜parameter>\n' in talk


@pytest.mark.parametrize(
    ("name", "effort", "begin", "lines"),
    [
        *[(APRIL, effort, "", 0) for effort in ("low", "medium", "high", "xhigh")],
        (APRIL, "max", ABSOLUTE, 4),
        (JULY, "low", "", 0),
        *[(JULY, effort, ABSOLUTE, 4) for effort in ("medium", "high", "xhigh")],
        (JULY, "max", BEYOND, 4),
    ],
)
def test_v4_says_the_effort_before_all(name: str, effort: str, begin: str, lines: int) -> None:
    """And only where the model thinks."""
    text = prompt(name, *TALK, reasoning_effort=effort)
    before, _, _ = text.partition("Be brief.")
    assert before.startswith(begin)
    assert (before.count("\n"), bool(before)) == (lines, bool(begin))
    assert not before or before.endswith(".\n\n")
    assert prompt(name, *TALK, reasoning_effort=effort, thinking=False).startswith("Be brief.")


@pytest.mark.parametrize("name", V4)
def test_v4_goes_on_with_an_answer(name: str) -> None:
    begun = (user("Count."), assistant("1, 2,", prefix=True))
    assert prompt(name, *begun, thinking=False) == "<｜User｜>Count.<｜Assistant｜></think>1, 2,"
    assert prompt(name, *begun) == "<｜User｜>Count.<｜Assistant｜><think></think>1, 2,"
    assert prompt(name, user("Count."), assistant("1")) == f"<｜User｜>Count.<｜Assistant｜><think></think>1{EOS}"


@pytest.mark.parametrize("name", V4)
def test_v4_knows_reminders_tasks_and_developers(name: str) -> None:
    reminder = {"role": "latest_reminder", "content": "2026-11-26"}
    assert prompt(name, system("S"), reminder, user("hi")) == (
        "S<｜latest_reminder｜>2026-11-26<｜User｜>hi<｜Assistant｜><think>"
    )
    assert prompt(name, user("hi", task="title")) == "<｜User｜>hi<｜title｜>"
    assert prompt(name, user("hi", task="action")) == "<｜User｜>hi<｜Assistant｜><think><｜action｜>"
    assert prompt(name, user("hi", task="title"), assistant("T")) == f"<｜User｜>hi<｜title｜>T{EOS}"
    developer = {"role": "developer", "content": "D"}
    assert prompt(name, developer, assistant("x"), user("hi"), thinking=False) == (
        f"<｜User｜>D<｜Assistant｜></think>x{EOS}<｜User｜>hi<｜Assistant｜></think>"
    )
    assert prompt(name, developer, assistant("x"), user("hi")) == f"x{EOS}<｜User｜>hi<｜Assistant｜><think>"


@pytest.mark.parametrize("name", V4)
def test_v4_answers_also_where_the_last_message_is_not_the_users(name: str) -> None:
    """Agents append reminders; the published encoder would begin no answer behind them."""
    assert prompt(name, user("hi"), system("Be brief.")) == "<｜User｜>hiBe brief.<｜Assistant｜><think>"


def test_v32_says_behind_each_message_whether_the_model_thinks() -> None:
    talk = f"Be brief.<｜User｜>1+1?<｜Assistant｜></think>2{EOS}<｜User｜>2+2?<｜Assistant｜>"
    assert prompt(V32, *TALK) == f"{talk}</think>"
    assert prompt(V32, *TALK, thinking=True) == f"{talk}<think>"
    assert prompt(V32, *TALK, thinking=True, add_generation_prompt=False) == talk.removesuffix("<｜Assistant｜>")


def test_v32_results_are_one_element_behind_the_calls() -> None:
    made = [call("a", "weather", '{"city": "Köln"}'), call("b", "now", "{}")]
    answer = assistant(None, reasoning_content="Two calls.", tool_calls=made)
    calls = (
        '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Köln</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    )
    results = "\n\n<function_results>\n<result>rain</result>\n<result>noon</result>\n</function_results>\n\n"
    messages = (system("S"), user("Weather?"), answer, result("a", "rain"), result("b", "noon"))
    assert prompt(V32, *messages, tools=TOOLS, thinking=True) == (
        f"S\n\n{V32_TOOLS}<｜User｜>Weather?<｜Assistant｜><think>Two calls.</think>{calls}{EOS}{results}<think>"
    )
    assert prompt(V32, *messages, user("And?"), thinking=True) == (
        f"S<｜User｜>Weather?<｜Assistant｜></think>{calls}{EOS}{results}</think><｜User｜>And?<｜Assistant｜><think>"
    )


def test_a_response_format_stands_behind_the_tools() -> None:
    shown = '## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{"type": "object"}'
    schema = {"type": "object"}
    assert prompt(JULY, *TALK, response_format=schema).startswith(f"Be brief.\n\n{shown}<｜User｜>1+1?")
    assert prompt(V32, user("x"), tools=TOOLS, response_format=schema).startswith(
        f"\n\n{V32_TOOLS}\n\n{shown}<｜User｜>x"
    )
    developer = {"role": "developer", "content": "D", "response_format": schema}
    assert prompt(V32, developer) == f"<｜User｜>\n\n{shown}\n\n# The user's message is: D<｜Assistant｜></think>"
    assert prompt(APRIL, developer) == f"<｜User｜>D\n\n{shown}<｜Assistant｜><think>"


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
CALLING = assistant(None, tool_calls=[call("a", "now", "{}"), call("b", "now", "{}")])


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize(
    ("messages", "variables", "param"),
    [
        ([user("x"), {"role": "critic", "content": "x"}], {}, "messages[1].role"),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}, IMAGE]}], {}, "messages[0].content[1]"),
        ([user("x"), result("a", "x")], {}, "messages[1]"),
        ([user("x"), CALLING, result("c", "x")], {}, "messages[2].tool_call_id"),
        ([{"role": "developer", "content": ""}], {}, "messages[0].content"),
        ([assistant("x", prefix=True), user("y")], {}, "messages[0].prefix"),
        ([user("x")], {"thinking": "yes"}, "chat_template_kwargs.thinking"),
        ([user("x")], {"drop_thinking": 1}, "chat_template_kwargs.drop_thinking"),
    ],
)
def test_what_cannot_be_encoded_is_refused_by_its_path(
    name: str, messages: list[dict[str, Any]], variables: dict[str, Any], param: str
) -> None:
    with pytest.raises(TemplateError) as refused:
        encoder(name).render(messages, **variables)
    assert refused.value.param == param
    assert param in str(refused.value)


@pytest.mark.parametrize(
    ("name", "messages", "variables", "param"),
    [
        (APRIL, [user("x")], {"reasoning_effort": "much"}, "reasoning_effort"),
        (JULY, [user("x", task="poem")], {}, "messages[0].task"),
        (V32, [user("x"), CALLING, result("a", "x"), user("y")], {}, "messages[1].tool_calls"),
        (V32, [user("x"), CALLING, result("a", "x")], {}, "messages[1].tool_calls"),
        (V32, [user("x"), CALLING, user("y"), result("a", "x")], {}, "messages[3]"),
        (V32, [user("x"), CALLING, *[result("a", "x")] * 3], {}, "messages[4]"),
        (V32, [user("x"), assistant("y")], {"thinking": True}, "messages[1].reasoning_content"),
        (V32, [{"role": "latest_reminder", "content": "x"}], {}, "messages[0].role"),
    ],
)
def test_what_one_model_cannot_take_is_refused_by_its_path(
    name: str, messages: list[dict[str, Any]], variables: dict[str, Any], param: str
) -> None:
    with pytest.raises(TemplateError) as refused:
        encoder(name).render(messages, **variables)
    assert refused.value.param == param


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(st.characters(codec="ascii"), max_size=3), inner)
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=60)
@given(arguments=st.dictionaries(st.from_regex("[a-z]{1,3}", fullmatch=True), VALUES, max_size=3))
def test_the_parser_reads_what_the_encoder_writes(arguments: dict[str, Any]) -> None:
    for name in (V32, JULY):
        talk = prompt(name, user("x"), assistant("Hm.", tool_calls=[call("a", "f", json.dumps(arguments))]))
        answer = talk.rpartition("</think>")[2].removesuffix(EOS)
        read = put_together(FORMATS["dsml"].parser([Tool("f")]), list(answer))
        assert read.content == "Hm."
        assert [(found[0], json.loads(found[1])) for found in read.calls] == [("f", arguments)]


def test_each_special_token_of_a_prompt_is_one_token(tmp_path: Path) -> None:
    """As the front door encodes it: no token is added, and none is spelt out."""
    special = [BOS, EOS, "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"]
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "hi": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    backend.save(str(tmp_path / "tokenizer.json"))
    ids = OurTokenizer.load(tmp_path).encode(encoder(JULY).render([user("hi")]), add_special_tokens=False)
    assert ids == [backend.token_to_id(token) for token in (BOS, "<｜User｜>", "hi", "<｜Assistant｜>", "<think>")]


def folder_with(path: Path, model_type: str, **files: str) -> Path:
    (path / "encoding").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"model_type": model_type}))
    for name, text in files.items():
        (path / "encoding" / f"{name}.py").write_text(text)
    return path


@pytest.mark.parametrize(
    ("model_type", "files", "chosen"),
    [
        ("deepseek_v4", {"encoding_dsv4": "REASONING_EFFORT_MAX = ''"}, (APRIL, False)),
        ("deepseek_v4", {"encoding_dsv4": f'X = "{ABSOLUTE}"'}, (APRIL, False)),
        ("deepseek_v4", {"encoding_dsv4": 'REASONING_EFFORT_PROMPTS = {"low": ""}'}, (JULY, False)),
        ("deepseek_v4", {"other": f"{ABSOLUTE}{BEYOND}"}, (JULY, False)),
        ("deepseek_v4", {"encoding_dsv4": "raise SystemExit"}, (JULY, True)),
        ("deepseek_v4", {}, (JULY, True)),
        ("deepseek_v32", {}, (V32, False)),
        ("deepseek_v3", {"encoding_dsv4": "REASONING_EFFORT_MAX"}, None),
    ],
)
def test_the_folder_says_the_revision(
    tmp_path: Path, model_type: str, files: dict[str, str], chosen: tuple[str, bool] | None
) -> None:
    """By what its encoder has in it, which is never run."""
    folder = folder_with(tmp_path / "model", model_type, **files)
    choice = choose(folder)
    assert (choice and (choice.name, choice.assumed)) == chosen
    loaded = load_chat_format(folder)
    assert (loaded.name if isinstance(loaded, Encoder) else loaded) == (chosen and chosen[0])


def test_a_template_comes_before_an_encoder_and_the_profile_before_both(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model", "deepseek_v4")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert isinstance(load_chat_format(folder), ChatTemplate)
    chosen = load_chat_format(folder, APRIL)
    assert isinstance(chosen, Encoder)
    assert chosen.name == APRIL


def test_an_encoder_too_large_to_be_one_is_an_error(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model", "deepseek_v4", encoding_dsv4="#" * (1 << 21))
    with pytest.raises(CheckpointError) as refused:
        choose(folder)
    assert refused.value.id == "encoding-unreadable"


def test_a_profile_may_choose_every_encoder_that_there_is() -> None:
    assert tuple(ENCODERS) == parser_names.CHAT_ENCODINGS
