"""What the items of /v1/responses become: messages as templates know them, and fewer where they do not fit."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from appliance.home import Home
from appliance.serving.body import INLINE_BYTES
from appliance.serving.errors import ApiError
from appliance.serving.fields import Ignored
from appliance.serving.responses import request
from appliance.serving.responses.fields import ResponseFields
from appliance.serving.responses.items import check_items
from appliance.serving.responses.messages import chat_messages
from appliance.serving.responses.store import ResponseStore
from appliance.serving.responses.tools import chat_tools
from tests.serving.test_lifetime import core_of
from tests.supervisor.scripted import Door

USER = {"role": "user", "content": "Hello"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OTHER = {**CALL, "call_id": "d", "name": "g"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "42"}]}
SAID = {
    "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
    "content": [{"type": "output_text", "text": "Hi", "annotations": []}, {"type": "refusal", "refusal": "."}],
}  # fmt: skip
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}
SUMMARY = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So"}], "content": None}
ENCRYPTED = {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}


def call(call_id: str, name: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("Hello", [USER]),
        ([USER, SAID, USER], [USER, {"role": "assistant", "content": "Hi."}, USER]),
        (
            [USER, THOUGHT, SAID, CALL, OTHER, OUTPUT],
            [
                USER,
                {
                    "role": "assistant", "content": "Hi.", "reasoning_content": "Hm",
                    "tool_calls": [call("c", "f"), call("d", "g")],
                },
                {"role": "tool", "tool_call_id": "c", "content": "42"},
            ],
        ),
        ([SUMMARY, CALL], [
            {"role": "assistant", "content": None, "reasoning_content": "So", "tool_calls": [call("c", "f")]},
        ]),
        ([USER, ENCRYPTED], [USER]),
        ([SAID, SAID], [{"role": "assistant", "content": "Hi."}] * 2),
        ([{"role": "developer", "content": "Be brief."}, {"role": "system", "content": "Be kind."}, USER], [
            {"role": "system", "content": "Be brief.\n\nBe kind."}, USER,
        ]),
        ([USER, {"role": "developer", "content": "Be brief."}], [USER, {"role": "system", "content": "Be brief."}]),
    ],
)  # fmt: skip
def test_items_are_messages(items: Any, messages: list[dict[str, Any]]) -> None:
    """Those of one turn are one message of the assistant."""

    def find(*_: str) -> Any:
        raise AssertionError

    checked = check_items(items, [], find, Ignored(strict=True))
    assert chat_messages(None, checked) == messages
    assert len({item["id"] for item in checked}) == len({json.dumps(item) for item in checked})


def test_instructions_come_first(door: Door) -> None:
    """Together with what else the system says at the beginning."""
    checked = check_items([{"role": "system", "content": "b"}, USER], [], lambda *_: {}, Ignored(strict=True))
    assert chat_messages("a", checked)[0] == {"role": "system", "content": "a\n\nb"}


def test_the_oldest_turns_are_left_out_where_they_do_not_fit(door: Door) -> None:
    """As few as will do; without that wish, the request is refused."""
    system = {"role": "system", "content": "Be brief."}
    turns = [[{"role": "user", "content": f"{turn} " + "x" * 60}, SAID] for turn in range(12)]

    def ask(first: int, **body: Any) -> Any:
        sent = [system, *(item for turn in turns[first:] for item in turn), USER]
        return door.http.post("/v1/responses", json={"input": sent, "max_output_tokens": 40, **body})

    whole = ask(0)
    assert (whole.status_code, whole.json()["error"]["code"]) == (400, "context_length_exceeded")
    fits = next(answer for first in range(1, 13) if (answer := ask(first)).status_code == 200)
    shortened = ask(0, truncation="auto")
    assert shortened.status_code == 200, shortened.text
    assert shortened.json()["usage"]["input_tokens"] == fits.json()["usage"]["input_tokens"]
    assert shortened.json()["truncation"] == "auto"
    alone = door.http.post("/v1/responses", json={"input": "x" * 2000, "truncation": "auto"})
    assert (alone.status_code, alone.json()["error"]["param"]) == (400, "input")


def test_a_stream_that_fails_ends_in_the_error(home: Home) -> None:
    """As an event of its own, and as the state of the answer."""
    with Door(home, token_s=0.05) as failing:
        failing.wait("ready")
        found: list[dict[str, Any]] = []
        body = {"input": "x", "max_output_tokens": 400, "stream": True}
        with failing.http.stream("POST", "/v1/responses", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    found.append(json.loads(line[6:]))
                    if found[-1]["type"] == "response.output_text.delta" and len(found) == 5:
                        core_of(failing).kill()
    error, failed = found[-2:]
    assert [error["type"], failed["type"]] == ["error", "response.failed"]
    assert [error["sequence_number"], failed["sequence_number"]] == [len(found) - 2, len(found) - 1]
    assert error["code"] == "engine_failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "server_error"
    assert failed["response"]["id"] == found[0]["response"]["id"]


def test_a_tool_that_runs_elsewhere_is_refused_where_requests_are_strict():
    with pytest.raises(ApiError) as refused:
        chat_tools([{"type": "web_search"}], Ignored(strict=True))
    assert refused.value.param == "tools[0].type"


def test_a_conversation_of_many_items_takes_time_in_proportion() -> None:
    """Systems' texts at its beginning, and what the assistant says and thinks around its calls."""
    count, long = 6_000, "x" * 1000
    system = {"type": "message", "role": "system", "content": [{"text": long}]}
    thought = {"type": "reasoning", "summary": [{"text": long}]}
    said = {"type": "message", "role": "assistant", "content": [{"text": long}]}
    began = time.process_time()
    messages = chat_messages("Be brief.", [system] * count + [CALL] + [thought, said] * count)
    assert time.process_time() - began < 1
    assert [message["role"] for message in messages] == ["system", "assistant"]
    assert len(messages[0]["content"]) == len("Be brief.") + count * (len(long) + 2)
    assert len(messages[1]["content"]) == len(messages[1]["reasoning_content"]) == count * (len(long) + 1) - 1


@pytest.mark.parametrize(
    ("length", "kept", "beside"),
    [(10, 0, False), (INLINE_BYTES + 1, 0, True), (10, 1, True)],
)
async def test_a_long_input_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, length: int, kept: int, beside: bool
) -> None:
    """It is translated beside the event loop; so is a short one, if it may refer to what is kept."""
    threads = []

    def translate(*_: Any) -> Any:
        threads.append(threading.current_thread())
        raise ApiError(400, "")

    monkeypatch.setattr(request, "translate", translate)
    model: Any = None
    with pytest.raises(ApiError):
        await request.response_ask(
            b"x" * length, ResponseFields(input="x"), model, ResponseStore(kept), "", Ignored(strict=True)
        )
    assert [thread is not threading.main_thread() for thread in threads] == [beside]
