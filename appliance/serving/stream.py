"""Server-sent events: frames, heartbeats between them, and an error as the last frame where one comes too late for a
status."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import msgspec
from litestar.response import Stream

from appliance.serving.errors import ApiError

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


def sse(frames: AsyncIterator[bytes]) -> Stream:
    return streamed(frames, SSE, {})


def streamed(frames: AsyncIterator[bytes], media_type: str, headers: Mapping[str, str]) -> Stream:
    return Stream(frames, media_type=media_type, headers={**HEADERS, **headers})


async def ending_in_error(
    frames: AsyncIterator[bytes], error_frame: Callable[[ApiError], bytes]
) -> AsyncIterator[bytes]:
    """Errors after the first frame are sent in the stream."""
    try:
        async for each in frames:
            yield each
    except ApiError as error:
        yield error_frame(error)
