"""An answer's parts in OpenAI's form: as one message, or as the deltas of one."""

from __future__ import annotations

import secrets
from typing import Any

from appliance.core_protocol import FinishReason
from appliance.serving.answer_format import finish_reason
from appliance.serving.choice import Choice, Piece
from appliance.serving.parsers.base import CallDelta


def message(piece: Piece, *, include_reasoning: bool) -> dict[str, Any]:
    """The whole answer. Its content is null where it consists of calls."""
    written: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
    if include_reasoning:
        written |= _reasoning(piece)
    if piece.calls:
        written["content"] = piece.text or None
        written["tool_calls"] = _calls(piece.calls)
    return written


def delta(piece: Piece, *, include_reasoning: bool) -> dict[str, Any]:
    """What the answer gains; {} where that is nothing that the client sees."""
    written: dict[str, Any] = _reasoning(piece) if include_reasoning else {}
    if piece.text:
        written["content"] = piece.text
    if piece.calls:
        written["tool_calls"] = [_call_delta(call) for call in piece.calls]
    return written


def chat_finish_reason(choice: Choice, piece: Piece) -> str | None:
    """A client may run the calls of an answer that ends in `tool_calls`: they are complete."""
    ended = piece.finish_reason is FinishReason.STOP and choice.called
    return "tool_calls" if ended else finish_reason(piece)


def _reasoning(piece: Piece) -> dict[str, Any]:
    """Under both names, as clients read the one or the other: DeepSeek's, and that of OpenRouter and newer vLLMs."""
    return {"reasoning_content": piece.reasoning, "reasoning": piece.reasoning} if piece.reasoning else {}


def _calls(deltas: list[CallDelta]) -> list[dict[str, Any]]:
    calls: dict[int, dict[str, Any]] = {}
    for part in deltas:
        if part.index not in calls:
            calls[part.index] = _begun(part)
        else:
            calls[part.index]["function"]["arguments"] += part.arguments
    return list(calls.values())


def _call_delta(call: CallDelta) -> dict[str, Any]:
    written = {"function": {"arguments": call.arguments}} if call.name is None else _begun(call)
    return {"index": call.index, **written}


def _begun(call: CallDelta) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id or _new_id(), "type": "function", "function": function}


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"
