"""Requests beside the web framework: their path, their body, and whether their client is still there."""

from __future__ import annotations

from typing import Any

from litestar.types import Receive, Scope

from appliance.serving.errors import ClientGoneError, too_large


def plain_path(scope: Scope) -> str:
    """Normalised like the framework's router, which ignores extra slashes."""
    return "/" + "/".join(part for part in scope["path"].split("/") if part)


async def read_raw(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """Raises ApiError (413), and ClientGoneError if the client disconnects before it has sent everything."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message: Any = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise too_large(max_bytes)
        if not message.get("more_body", False):
            return b"".join(parts)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has."""
    while (await receive())["type"] != "http.disconnect":
        pass
