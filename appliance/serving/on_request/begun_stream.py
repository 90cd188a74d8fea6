"""An answer whose status was sent before it began: what its client gets while it waits, and how the rest follows."""

from __future__ import annotations

import math
import time
from typing import Any, Final

from litestar.types import Message, Scope, Send

from appliance.serving.connection import plain_path
from appliance.serving.error_shape import asks_ollama, error_frame, read_error
from appliance.serving.errors import ApiError
from appliance.serving.ollama.answer import LINES, timestamp
from appliance.serving.stream import HEADERS, SSE, encode

COMMENT_EVERY_S: Final = 1.0
"""Also how long a client waits at most for the status."""
PART_EVERY_S: Final = 10.0
"""Lines of JSON have no comments: an empty part of the answer keeps the connection open."""


def comment_every_s(begun: BegunStream | None) -> float:
    if begun is None:
        return math.inf
    return PART_EVERY_S if begun.is_lines else COMMENT_EVERY_S


class BegunStream:
    """`begun` once the status has been sent."""

    def __init__(self, model: str, scope: Scope, send: Send) -> None:
        self.begun = False
        self.is_lines = asks_ollama(scope)
        self._model = model
        self._scope = scope
        self._send = send
        self._failed: int | None = None  # the status that comes too late
        self._body = b""

    async def comment(self, words: str) -> None:
        if not self.begun:
            self.begun = True
            headers = {"content-type": LINES if self.is_lines else SSE, **HEADERS}
            raw: Any = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
        await self._piece(self._empty_part() if self.is_lines else f": {words}\n\n".encode())

    async def end(self, error: ApiError) -> None:
        await self._piece(error_frame(error, self._scope), more=False)

    async def pass_on(self, message: Message) -> None:
        """A `send` for whoever answers now. What it refuses becomes the end of the stream."""
        if message["type"] == "http.response.start":
            self._failed = message["status"] if message["status"] >= 400 else None
        elif message["type"] == "http.response.body" and self._failed is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self.end(read_error(self._failed, self._body))
        else:
            await self._send(message)

    async def _piece(self, piece: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    def _empty_part(self) -> bytes:
        chat = plain_path(self._scope) == "/api/chat"
        words: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if chat else {"response": ""}
        return encode({"model": self._model, "created_at": timestamp(time.time()), **words, "done": False}) + b"\n"
