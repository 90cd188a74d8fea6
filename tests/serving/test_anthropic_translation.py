"""What the model is shown of a request in Anthropic's form."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import pytest

from appliance.serving.anthropic.conversation import MAX_BLOCKS
from appliance.serving.anthropic.fields import MESSAGES, MessagesFields
from appliance.serving.anthropic.request import translate
from appliance.serving.body import INLINE_BYTES, beside_others
from appliance.serving.chat_request import ChatFields
from appliance.serving.errors import ApiError
from appliance.serving.fields import decode_request
from appliance.serving.messages import MAX_MESSAGES

USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}


def chat(*messages: Any, **fields: Any) -> ChatFields:
    body = {"max_tokens": 100, "messages": messages, **fields}
    decoded, ignored = decode_request(msgspec.json.encode(body), MessagesFields, strict=True, api=MESSAGES)
    return translate(decoded, ignored).chat


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_blocks_become_messages() -> None:
    """A result goes before what the user says with it, and reasoning with the call that it led to."""
    thinking = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
    ]
    messages = chat(
        user(text("one"), text("two")),
        {"role": "assistant", "content": [*thinking, text("I call"), text(" it."), USE]},
        user(text("and?"), {"type": "tool_result", "tool_use_id": "t1", "content": [text("a"), text("b")]}),
        system="Be brief.",
    ).messages
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "I call it.", "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "a\nb"},
        {"role": "user", "content": "and?"},
    ]


def test_a_systems_message_within_the_conversation_is_part_of_the_users_turn() -> None:
    """Claude Code sends such; most templates take one at the head only."""
    system = {"role": "system", "content": "Mind the gap."}
    messages = chat({"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}, system).messages
    said = "hi\n<system-reminder>\nMind the gap.\n</system-reminder>"
    assert messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": said}]


def test_turns_of_the_same_role_are_one() -> None:
    """As Anthropic has it, since many templates accept nothing else; also of calls."""
    two = {**USE, "id": "t2"}
    results = [{"type": "tool_result", "tool_use_id": name, "content": name} for name in ("t1", "t2")]
    messages = chat(
        {"role": "user", "content": "one"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": [USE]},
        {"role": "assistant", "content": [two]},
        user(*results),
    ).messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[0]["content"] == "one\ntwo"
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["t1", "t2"]


def test_a_failed_tool_is_told_from_one_that_succeeded() -> None:
    """Unless its result says so itself."""
    for said, shown in (("no file", "Error: no file"), ("Error: no file", "Error: no file"), ("", "Error: ")):
        result = {"type": "tool_result", "tool_use_id": "t1", "content": said, "is_error": True}
        assert chat({"role": "assistant", "content": [USE]}, user(result)).messages[-1]["content"] == shown


def test_claude_codes_billing_line_does_not_reach_the_prompt() -> None:
    """It differs at every request, so nothing behind it would be found in the prefix cache."""
    system = [text("x-anthropic-billing-header: cc_version=2.1; cch=eb6c6;"), text("You are"), text("an agent.")]
    assert chat(user(text("hi")), system=system).messages[0] == {"role": "system", "content": "You are\nan agent."}
    assert [message["role"] for message in chat(user(text("hi")), system=system[:1]).messages] == ["user"]


def test_choices_of_tools() -> None:
    """In OpenAI's words."""
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    named = {"type": "function", "function": {"name": "f"}}
    for given, expected in (("auto", "auto"), ("any", "required"), ("none", "none")):
        assert chat(user(text("x")), tools=tools, tool_choice={"type": given}).tool_choice == expected
    fields = chat(user(text("x")), tools=tools, tool_choice={"type": "tool", "name": "f"})
    assert (fields.tool_choice, fields.parallel_tool_calls) == (named, True)
    only = chat(user(text("x")), tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert only.parallel_tool_calls is False


def test_thinking_is_off_unless_it_is_asked_for() -> None:
    """As with Anthropic's own models."""
    for thinking, expected in ((None, False), ("disabled", False), ("enabled", True), ("adaptive", True)):
        fields = {} if thinking is None else {"thinking": {"type": thinking}}
        assert chat(user(text("x")), **fields, output_config={"effort": "high"}).enable_thinking is expected


async def test_a_long_request_keeps_nobody_waiting() -> None:
    """It is translated beside the event loop."""
    threads = [await beside_others(b"x" * length, threading.current_thread) for length in (10, INLINE_BYTES + 1)]
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


def test_a_turn_of_many_blocks_takes_time_in_proportion() -> None:
    """Texts and reasoning alike."""
    long = "x" * 500
    thought = {"type": "thinking", "thinking": long}
    said = {"role": "assistant", "content": [thought, text(long)] * (MAX_BLOCKS // 2 - 1)}
    began = time.process_time()
    messages = chat(said, user(text("go on"))).messages
    assert time.process_time() - began < 1.5
    assert len(messages[0]["content"]) == 500 * (MAX_BLOCKS // 2 - 1)
    assert messages[0]["reasoning_content"].count("\n") == MAX_BLOCKS // 2 - 2


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([user(*[text("x")] * (MAX_BLOCKS + 1))], "messages[0].content"),
        ([user(text("x"))] * MAX_BLOCKS + [user(text("x"), text("x"))], "messages"),
        ([user(*[text("x")] * MAX_BLOCKS), user(text("x"))], "messages[1].content"),
        (
            [
                {"role": "assistant", "content": [USE]},
                user({"type": "tool_result", "tool_use_id": "t1", "content": [text("x")] * MAX_BLOCKS}),
            ],
            "messages[1].content[0].content",
        ),
        ([user()] * (MAX_MESSAGES + 1), "messages"),
    ],
)
def test_too_many_blocks_are_refused(messages: list[Any], param: str) -> None:
    """Those of the whole request count, and those within results."""
    with pytest.raises(ApiError) as refused:
        chat(*messages)
    assert (refused.value.status, refused.value.param) == (400, param)
