"""HEAD for every address that answers GET: the same status and headers, without a body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Send


def with_head(app: ASGIApp) -> ASGIApp:
    """The application, which sees a HEAD as a GET whose client leaves once the headers are out: streams end there."""

    async def answer(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            await _answer_head(app, scope, receive, send)
        else:
            await app(scope, receive, send)

    return answer


async def _answer_head(app: ASGIApp, scope: Any, receive: Receive, send: Send) -> None:
    begun = False

    async def send_head(message: Message) -> None:
        nonlocal begun
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            begun = True

    async def receive_until_begun() -> Any:
        return {"type": "http.disconnect"} if begun else await receive()

    get: Any = {**scope, "method": "GET"}
    await app(get, receive_until_begun, send_head)
