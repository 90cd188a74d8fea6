"""How every kind of completion is answered: streamed as the pieces come, or whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Protocol

from litestar import Request, Response

from appliance.serving.answering import Answering, whole_unless_gone
from appliance.serving.choice import Choice, Piece
from appliance.serving.errors import ApiError
from appliance.serving.served_model import INLINE_TOKENS
from appliance.serving.stream import SSE, FrameStream, encode, ending_in_error, frame

Answered = FrameStream | Response[bytes]

GENERATING = (404, 429, 502, 503)
"""The errors of every route that has the model answer, beside those of its request."""


class Answer(Protocol):
    """How one API writes its answers."""

    media_type: ClassVar[str] = SSE
    """Of a stream."""

    def frames(self, answering: Answering) -> AsyncIterator[bytes]: ...

    def whole(self, choices: list[Choice], pieces: list[Piece]) -> dict[str, Any]: ...

    def error_frame(self, error: ApiError) -> bytes:
        """What ends a stream in an error, in the shape that this API's clients raise; OpenAI's unless overridden."""
        return frame(error.content)


async def respond(
    request: Request[Any, Any, Any],
    answering: Answering,
    answer: Answer,
    *,
    stream: bool | None,
    headers: dict[str, str],
) -> Answered:
    """Frees every slot once the answer has ended or its client has disconnected. A long answer is written beside the
    event loop."""
    if stream:
        frames = ending_in_error(answer.frames(answering), answer.error_frame)
        return FrameStream(frames, answer.media_type, headers)
    choices = answering.choices
    pieces = await whole_unless_gone(request, answering)

    def write() -> bytes:
        return encode(answer.whole(choices, pieces))

    is_short = not answering.has_logprobs and sum(len(piece.token_ids) for piece in pieces) <= INLINE_TOKENS
    body = write() if is_short else await asyncio.to_thread(write)
    return Response(body, media_type="application/json", headers=headers)
