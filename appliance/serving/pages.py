"""Web pages of other sites that show an API key, such as Open WebUI with direct connections: browsers let those that
the site allows ask, and read the answers (CORS). Whether such a page is let in is still for `access` to say; cookies
count nowhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Send

ALLOWED_ORIGINS: Final = "INGOT_ALLOWED_ORIGINS"
EVERY: Final = "*"
METHODS: Final = b"GET, POST, DELETE"
REMEMBERED_S: Final = b"600"

# What a browser sends as Origin (RFC 6454, 6.1): also apps, such as app://obsidian.md, but never "null", which the
# sandboxed pages of everybody have in common.
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_USUAL_PORTS: Final = {"http": 80, "https": 443}
_MAX_SHOWN: Final = 80

Headers = list[tuple[bytes, bytes]]


class AllowedOrigins(NamedTuple):
    """The origins whose pages browsers let use the API: none, unless the site names some."""

    named: frozenset[str] = frozenset()
    every: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> AllowedOrigins:
        """`INGOT_ALLOWED_ORIGINS`: exact origins, separated by commas, or `*`. Raises ValueError that says which of
        them is none."""
        given = [each.strip() for each in environ.get(ALLOWED_ORIGINS, "").split(",")]
        given = [each for each in given if each]
        if given == [EVERY]:
            return cls(every=True)
        if EVERY in given:
            raise ValueError(f"{ALLOWED_ORIGINS} has {EVERY} beside other origins. Use {EVERY} alone, or name each.")
        return cls(frozenset(map(_origin, given)))

    def allows(self, origin: str | None) -> bool:
        return origin is not None and (self.every or origin in self.named)

    def of_answer(self, origin: str | None) -> Headers:
        """The headers of an answer to a page of this origin, None if no page asks."""
        vary = [(b"vary", b"origin")] if self.named else []
        if origin is None or not self.allows(origin):
            return vary
        shown = EVERY if self.every else origin
        return [(b"access-control-allow-origin", shown.encode()), (b"access-control-expose-headers", b"*"), *vary]


def _origin(text: str) -> str:
    """As browsers write it: in small letters, and without its scheme's usual port."""
    lower = text.lower()
    try:
        port = urlsplit(lower).port if _ORIGIN.fullmatch(lower) else None
    except ValueError:  # above 65535
        lower, port = "", None
    if not _ORIGIN.fullmatch(lower):
        raise ValueError(
            f"{ALLOWED_ORIGINS}: {text[:_MAX_SHOWN]!r} is not an origin. Use a scheme, a host and perhaps a port, "
            f"such as https://chat.example.org, several separated by commas, or {EVERY}."
        )
    usual = _USUAL_PORTS.get(lower.partition(":")[0])
    return lower.removesuffix(f":{port}") if port is not None and port == usual else lower


def open_to_pages(app: ASGIApp, allowed: AllowedOrigins) -> ASGIApp:
    """Around an API. Without allowed origins it is `app` itself."""
    if allowed == AllowedOrigins():
        return app

    async def answer(scope: Any, receive: Receive, send: Send) -> None:
        asked = dict(scope["headers"])
        origin = asked[b"origin"].decode("latin-1") if b"origin" in asked else None
        told = allowed.of_answer(origin)
        preflight = scope["method"] == "OPTIONS" and b"access-control-request-method" in asked
        if preflight and allowed.allows(origin):
            await _answer_preflight(asked, told, send)
        else:
            await app(scope, receive, _with_headers(send, told))

    return answer


def _with_headers(send: Send, headers: Headers) -> Send:
    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return send_with


async def _answer_preflight(asked: Mapping[bytes, bytes], told: Headers, send: Send) -> None:
    """What a browser asks first, without the key that the request will have."""
    headers = [
        *told,
        (b"access-control-allow-methods", METHODS),
        (b"access-control-max-age", REMEMBERED_S),
        (b"vary", b"access-control-request-headers"),
    ]
    if (names := asked.get(b"access-control-request-headers")) is not None:
        headers.append((b"access-control-allow-headers", names))
    if b"access-control-request-private-network" in asked:
        headers.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
