"""Web pages of other sites that show an API key, such as Open WebUI with direct connections: browsers let them read an
answer only where it says so (CORS). Whether a page is let in is for `access` to say; cookies count nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Send

READABLE: Final = [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", b"*")]
"""The headers of an answer that any page may read: it has shown a key, or is told that it needs one."""
METHODS: Final = b"GET, POST, DELETE"
REMEMBERED_S: Final = b"600"


def open_to_pages(app: ASGIApp) -> ASGIApp:
    async def answer(scope: Any, receive: Receive, send: Send) -> None:
        asked = dict(scope["headers"])
        if b"origin" not in asked:
            await app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and b"access-control-request-method" in asked:
            await _answer_preflight(asked, send)
        else:
            await app(scope, receive, _readable(send))

    return answer


def _readable(send: Send) -> Send:
    async def send_readable(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *READABLE]
        await send(message)

    return send_readable


async def _answer_preflight(asked: dict[bytes, bytes], send: Send) -> None:
    """What a browser asks first, without the key that the request will have."""
    allowed = [
        (b"access-control-allow-methods", METHODS),
        (b"access-control-max-age", REMEMBERED_S),
        (b"vary", b"access-control-request-headers"),
    ]
    if (names := asked.get(b"access-control-request-headers")) is not None:
        allowed.append((b"access-control-allow-headers", names))
    if b"access-control-request-private-network" in asked:
        allowed.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": [READABLE[0], *allowed]})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
