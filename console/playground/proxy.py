"""Passes a chat on to the front door and its answer back, piece by piece, under the console's own token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec

from appliance.home import Home
from console.access.token import token_header

CHAT = "/v1/chat/completions"
TIMEOUT = httpx.Timeout(connect=3.0, read=None, write=10.0, pool=3.0)
"""No limit on the reading: a model may think, and the front door ends an answer whose engine has died."""


class Unreachable(Exception):
    """The front door took no connection, or ended it before it had answered."""


class Answer:
    """An open response of the front door. Its creator closes it, which frees the request's slot."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.media_type = response.headers.get("content-type", "application/json")

    async def pieces(self) -> AsyncIterator[bytes]:
        """To the answer's end; or until the reader goes away, which closes the response."""
        try:
            async for piece in self._response.aiter_raw():
                yield piece
        except httpx.TransportError as error:
            yield error_frame(f"The engine closed the connection: {type(error).__name__}.")
        finally:
            await self._response.aclose()


async def ask(client: httpx.AsyncClient, home: Home, body: bytes) -> Answer:
    """Raises Unreachable when no front door answers."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **token_header(home)}
    request = client.build_request("POST", CHAT, content=body, headers=headers, timeout=TIMEOUT)
    try:
        return Answer(await client.send(request, stream=True))
    except httpx.TransportError as error:
        raise Unreachable(type(error).__name__) from error


def error_frame(message: str) -> bytes:
    """An error in the front door's form for the middle of a stream."""
    return b"data: " + msgspec.json.encode(error_body(message)) + b"\n\n"


def error_body(message: str) -> dict[str, Any]:
    """OpenAI's shape, which the page's script always reads."""
    return {"error": {"message": message, "type": "server_error", "param": None, "code": "engine_unreachable"}}
