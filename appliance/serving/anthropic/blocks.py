"""An answer's content as Anthropic's blocks: whole, or as the events of a stream."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from appliance.serving.choice import Piece
from appliance.serving.parsers.base import CallDelta
from appliance.serving.stream import named_frame


def whole_blocks(piece: Piece, *, shows_thinking: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if piece.reasoning and shows_thinking:
        blocks.append({"type": "thinking", "thinking": piece.reasoning, "signature": _signature()})
    if piece.text:
        blocks.append({"type": "text", "text": piece.text})
    calls: dict[int, list[CallDelta]] = {}
    for call in piece.calls:
        calls.setdefault(call.index, []).append(call)
    for parts in calls.values():
        arguments = "".join(part.arguments for part in parts)
        blocks.append({**_tool_use(parts[0]), "input": _input(arguments)})
    return blocks


class BlockEvents:
    """The events of one answer's blocks, each of which ends where the next begins."""

    def __init__(self, *, shows_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open = ""  # the type of the block that is open

    def add(self, piece: Piece) -> list[bytes]:
        events: list[bytes] = []
        if piece.reasoning and self._shows_thinking:
            events += self._begin({"type": "thinking", "thinking": "", "signature": ""})
            events.append(self._delta(type="thinking_delta", thinking=piece.reasoning))
        if piece.text:
            events += self._begin({"type": "text", "text": ""})
            events.append(self._delta(type="text_delta", text=piece.text))
        for call in piece.calls:
            if call.name is not None:
                events += self.end() + self._begin({**_tool_use(call), "input": {}})
            if call.arguments:
                events.append(self._delta(type="input_json_delta", partial_json=call.arguments))
        return events

    def end(self) -> list[bytes]:
        """Of the open block, if there is one."""
        if not self._open:
            return []
        signed = [self._delta(type="signature_delta", signature=_signature())] if self._open == "thinking" else []
        self._open = ""
        return [*signed, event("content_block_stop", index=self._index)]

    def _begin(self, block: dict[str, Any]) -> list[bytes]:
        if self._open == block["type"]:
            return []
        ended = self.end()
        self._open = block["type"]
        self._index += 1
        return [*ended, event("content_block_start", index=self._index, content_block=block)]

    def _delta(self, **delta: Any) -> bytes:
        return event("content_block_delta", index=self._index, delta=delta)


def event(type: str, **content: Any) -> bytes:
    return named_frame(type, {"type": type, **content}, id=None)


def _tool_use(call: CallDelta) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id or f"toolu_{secrets.token_hex(12)}", "name": call.name}


def _input(arguments: str) -> dict[str, Any]:
    """Of an object that was cut off, nothing: then the stop reason says that the call is not complete."""
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _signature() -> str:
    """Nothing here is signed, but clients send back only thinking that has a signature."""
    return secrets.token_hex(16)
