"""The front door before its routes are there: importing and building them takes longer than all that comes before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from appliance.protocol import State
from appliance.serving.host_header import malformed_host

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send

HEALTH = ("GET", "/health")


class Opening:
    """An ASGI application that answers /health from the beginning, and everything else once `open` was called: what is
    to be refused, too."""

    def __init__(self) -> None:
        self._opened: asyncio.Future[ASGIApp] = asyncio.get_running_loop().create_future()

    def open(self, app: ASGIApp) -> None:
        """From here on `app` answers, requests that came before included."""
        self._opened.set_result(app)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if not self._opened.done() and _asks_health(scope):
            await _answer_early(send)
            return
        app = await asyncio.shield(self._opened)  # it is not cancelled with a client that gives up
        await app(scope, receive, send)


def _asks_health(scope: Any) -> bool:
    return scope["type"] == "http" and (scope["method"], scope["path"]) == HEALTH and malformed_host(scope) is None


async def _answer_early(send: Send) -> None:
    """As the route answers while no launch has begun."""
    body = msgspec.json.encode({"state": State.PREFLIGHT, "reason": ""})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
