"""Server-sent events: frames, heartbeats between them, and an error as the last frame where one comes too late for a
status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from litestar import Response
from litestar.response.streaming import ASGIStreamingResponse

from appliance.serving.connection import disconnected
from appliance.serving.errors import ApiError, ClientGoneError

if TYPE_CHECKING:
    from litestar import Request
    from litestar.response.base import ASGIResponse
    from litestar.types import Receive, Send

HEARTBEAT = b": still here\n\n"
DONE = b"data: [DONE]\n\n"

# For proxies: do not buffer, do not store.
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

SSE: Final = "text/event-stream"

encode = msgspec.json.Encoder().encode


def frame(content: Any) -> bytes:
    return b"data: " + encode(content) + b"\n\n"


def named_frame(event: str, content: Any, id: str | None) -> bytes:
    head = f"id: {id}\nevent: {event}\n" if id is not None else f"event: {event}\n"
    return head.encode() + frame(content)


class FrameStream(Response[bytes]):
    """Frames as they come, until the client leaves: then they are cancelled where they wait."""

    def __init__(self, frames: AsyncIterator[bytes], media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__(b"", media_type=media_type, headers={**HEADERS, **headers})
        self._frames = frames

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **_: Any) -> ASGIResponse:
        return _Frames(iterator=self._frames, headers=self.headers, media_type=self.media_type)


class _Frames(ASGIStreamingResponse):
    async def send_body(self, send: Send, receive: Receive) -> None:
        """In the request's own task, with another to listen. The framework's own listens here, and the frames wait for
        their turn in a task whose scope costs more than a frame."""
        try:
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(_leave_with_client(receive))
                await self._stream(send)
                listening.cancel()
        except* ClientGoneError:
            pass


async def _leave_with_client(receive: Receive) -> NoReturn:
    await disconnected(receive)
    raise ClientGoneError


def sse(frames: AsyncIterator[bytes]) -> FrameStream:
    return FrameStream(frames, SSE, {})


async def ending_in_error(
    frames: AsyncIterator[bytes], error_frame: Callable[[ApiError], bytes]
) -> AsyncIterator[bytes]:
    """Errors after the first frame are sent in the stream."""
    try:
        async for each in frames:
            yield each
    except ApiError as error:
        yield error_frame(error)
