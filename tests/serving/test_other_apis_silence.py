"""What Anthropic's and Ollama's streams send while a long prompt is computed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from appliance.core_protocol import FinishReason
from appliance.serving.anthropic.answer import MessageAnswer
from appliance.serving.choice import Piece
from appliance.serving.ollama.answer import ChatAnswer


class SilentAnswering:
    """Silent for two heartbeats, and then there with all of its answer."""

    def __init__(self) -> None:
        self.closed = False
        self.choices = [
            SimpleNamespace(
                prompt_token_ids=[1, 2, 3],
                num_tokens=2,
                num_cached_tokens=0,
                reasoning_tokens=0,
                called=False,
                stop_string=None,
                first_token_at=None,
            )
        ]

    async def pieces(self) -> AsyncIterator[tuple[Any, Piece] | None]:
        yield None
        yield None
        yield self.choices[0], Piece(text="Hi.", finish_reason=FinishReason.STOP)

    def close(self) -> None:
        self.closed = True


async def test_anthropics_stream_has_begun_and_pings() -> None:
    """Its clients take nothing else before the message has started."""
    answering: Any = SilentAnswering()
    answer = MessageAnswer("tiny", shows_thinking=True, cut_short=False, request_id="r")
    frames = [frame.decode() async for frame in answer.frames(answering)]
    names = [frame.split("\n")[0].removeprefix("event: ") for frame in frames]
    assert names == [
        "message_start", "ping", "ping", "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert answering.closed


async def test_ollamas_stream_has_empty_parts() -> None:
    """Every line is a part of an answer to its clients."""
    answering: Any = SilentAnswering()
    answer = ChatAnswer("tiny", shows_thinking=True, began=0.0)
    parts = [json.loads(frame) async for frame in answer.frames(answering)]
    assert [part["message"]["content"] for part in parts] == ["", "", "Hi.", ""]
    assert [part["done"] for part in parts] == [False, False, False, True]
    assert answering.closed
