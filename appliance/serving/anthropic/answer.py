"""Writes answers in the form of /v1/messages."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

from appliance.core_protocol import FinishReason
from appliance.serving.answering import Answering
from appliance.serving.anthropic.blocks import BlockEvents, event, whole_blocks
from appliance.serving.anthropic.errors import error_event
from appliance.serving.choice import Choice, Piece
from appliance.serving.errors import ApiError
from appliance.serving.respond import Answer

PING = event("ping")


class MessageAnswer(Answer):
    """`cut_short`: the context has no room for all tokens that were asked for."""

    def __init__(self, model: str, *, shows_thinking: bool, cut_short: bool, request_id: str) -> None:
        self._model = model
        self._shows_thinking = shows_thinking
        self._cut_short = cut_short
        self._request_id = request_id
        self._id = f"msg_{secrets.token_hex(12)}"

    def whole(self, choices: list[Choice], pieces: list[Piece]) -> dict[str, Any]:
        choice, piece = choices[0], pieces[0]
        content = whole_blocks(piece, shows_thinking=self._shows_thinking)
        return {**self._message(content), **self._stop(choice, piece.finish_reason), "usage": _usage(choice)}

    async def frames(self, answering: Answering) -> AsyncIterator[bytes]:
        try:
            choice = answering.choices[0]
            blocks = BlockEvents(shows_thinking=self._shows_thinking)
            begun = False
            async for came in answering.pieces():
                if not begun:
                    # Not before: what came of the cache is known with the first token.
                    yield event("message_start", message=self._begun(choice))
                    begun = True
                if came is None:
                    yield PING
                    continue
                _, piece = came
                for each in blocks.add(piece):
                    yield each
                if piece.finish_reason is not None:
                    for each in blocks.end():
                        yield each
                    stop = self._stop(choice, piece.finish_reason)
                    yield event("message_delta", delta=stop, usage=_usage(choice))
            yield event("message_stop")
        finally:
            answering.close()

    def error_frame(self, error: ApiError) -> bytes:
        return error_event(error, self._request_id)

    def _begun(self, choice: Choice) -> dict[str, Any]:
        return {**self._message([]), "stop_reason": None, "stop_sequence": None, "usage": _usage(choice)}

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model, "content": content}

    def _stop(self, choice: Choice, finish_reason: FinishReason | None) -> dict[str, Any]:
        if finish_reason is FinishReason.LENGTH:
            reason = "model_context_window_exceeded" if self._cut_short else "max_tokens"
        elif choice.called:
            reason = "tool_use"
        elif choice.stop_string is not None:
            reason = "stop_sequence"
        else:
            reason = "end_turn"
        return {"stop_reason": reason, "stop_sequence": choice.stop_string if reason == "stop_sequence" else None}


def _usage(choice: Choice) -> dict[str, Any]:
    """What came from the cache is not among the input tokens, as Anthropic counts."""
    return {
        "input_tokens": len(choice.prompt_token_ids) - choice.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": choice.num_cached_tokens,
        "output_tokens": choice.num_tokens,
        "output_tokens_details": {"thinking_tokens": choice.reasoning_tokens},
    }
