"""Every request has an id, the client's or else one of ours, and every response names it."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send

VALID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
_STATE: Final = "request_id"


def named(app: ASGIApp) -> ASGIApp:
    """Every response of the application says who answered, and to which request."""

    async def with_headers(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        chosen = name_request(scope)
        ids: list[Any] = [(b"x-request-id", chosen), (b"request-id", chosen)]  # ours and Anthropic's

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"server", b"ingot"), *ids]
            await send(message)

        await app(scope, receive, send_named)

    return with_headers


def name_request(scope: Scope) -> bytes:
    """Choose the id and remember it."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    chosen = given if VALID.fullmatch(given) else secrets.token_hex(16).encode()
    state: dict[str, Any] = scope.setdefault("state", {})
    state[_STATE] = chosen.decode()
    return chosen


def request_id(scope: Scope) -> str:
    return str(scope.get("state", {}).get(_STATE, ""))
