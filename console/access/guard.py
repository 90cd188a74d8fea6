"""What every request passes first: the Host header, the cross-site rule, and the session.

A handler is open to people who are not signed in only where it says `public=True`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from litestar import Request
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from appliance.address import host_name, is_ip_address, is_own_origin
from console.access import program, sessions
from console.access.client_address import ClientAddresses
from console.after_post import Answers, send_again
from console.refusals import Refusal, SignInNeeded

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

STRICT_TRANSPORT = b"max-age=31536000"

KEEP = b"public, max-age=31536000, immutable"
"""For static files, which pages request by their content's hash."""


class Guard(ASGIMiddleware):
    scopes = (ScopeType.HTTP,)

    def __init__(self, addresses: ClientAddresses, answers: Answers) -> None:
        self._addresses = addresses
        self._answers = answers

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        request: Request[Any, Any, Any] = Request(scope, receive, send)
        if address := await self._addresses.behind_proxy(request):
            scope["client"] = (address, 0)
        console = request.app.state.console
        check_host(request, console.config.allowed_names)
        check_same_site(request)
        if scope["path"].startswith("/static/"):
            await next_app(scope, receive, send)
            return
        user = program.signed_in(console.home, request)
        user = user or await sessions.signed_in(console.database, request, console.config.session_hours)
        scope["user"] = user
        if answer := self._answers.find(request, user.session_id if user else None):
            await send_again(answer, send)
            return
        if user is None and not scope["route_handler"].opt.get("public"):
            raise SignInNeeded(await _way_in(request))
        await next_app(scope, receive, send)


def check_host(request: Request[Any, Any, Any], allowed: frozenset[str]) -> None:
    """Refuse names that we do not go by: a foreign page that has its own name pointed at this address sends that name
    (DNS rebinding). A bare address cannot be pointed elsewhere, so every one is let through."""
    host = request.headers.get("host", "")
    name = host_name(host)
    if not name:
        raise Refusal(
            400,
            f"{host!r} is not a valid Host header.",
            "Use an address such as 127.0.0.1:8080.",
            field="Host",
            value=host,
        )
    if name not in allowed and not is_ip_address(name):
        raise Refusal(
            403,
            f"{name!r} is not an allowed name of this console.",
            f"Use one of: {', '.join(sorted(allowed))}. To allow another, add it to INGOT_CONSOLE_NAMES and restart.",
            field="Host",
            value=host,
        )


def check_same_site(request: Request[Any, Any, Any]) -> None:
    """Refuse changes requested by another site's page. Browsers send the origin of a request in `Sec-Fetch-Site`, or,
    on plain HTTP away from loopback, in `Origin`; a program that sends neither has no browser's cookie."""
    if request.method in SAFE_METHODS:
        return
    site = request.headers.get("sec-fetch-site")
    if site in ("same-origin", "none"):
        return
    origin = request.headers.get("origin")
    if site is None and (origin is None or is_own_origin(origin, request.headers.get("host", ""))):
        return
    reason = f"its Sec-Fetch-Site header is {site!r}" if site else f"its Origin header is {origin!r}"
    raise Refusal(
        403,
        f"This request came from another site: {reason}. Nothing was changed.",
        "Open the console directly and try again there.",
        field="Sec-Fetch-Site" if site else "Origin",
        value=site or origin,
    )


async def _way_in(request: Request[Any, Any, Any]) -> str:
    if not await sessions.anybody(request.app.state.console.database):
        return "/setup"
    path = request.url.path
    if request.method != "GET" or path == "/":
        return "/sign-in"
    query = f"?{request.url.query}" if request.url.query else ""
    return f"/sign-in?next={quote(path + query, safe='')}"


async def add_security_headers(message: Message, scope: Scope) -> None:
    """Litestar's `before_send` hook: on every answer, faults included; pages are not kept by browsers. Behind HTTPS,
    browsers are instructed to use nothing else."""
    if message["type"] != "http.response.start":
        return
    headers = [*message.get("headers", ())]
    present = {name.lower() for name, _ in headers}
    headers += [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
    if scope["litestar_app"].state.console.config.cookie_secure:
        headers.append((b"strict-transport-security", STRICT_TRANSPORT))
    if b"cache-control" not in present:
        named_by_content = scope["path"].startswith("/static/") and scope["query_string"]
        headers.append((b"cache-control", KEEP if named_by_content else b"no-store"))
    message["headers"] = headers
