"""Post, redirect, get: a page that answers a form is shown at an address that can be reloaded and opened again.

Whatever page a POST is answered with (a refusal, a form with its problems) is kept here for a while, and the browser is
led to it: at the form's own address where that has a page, or else at the section's. So F5 never sends a form twice.
Once the kept answer is gone, the address shows its page as usual.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from litestar import Litestar, Request
from litestar.exceptions import HTTPException
from litestar.types import Message, Scope, Send

from console.pages import section

PARAMETER = "answer"
KEPT_FOR_S = 1800.0
MOST_OF_A_SESSION = 20
MOST_OF_VISITORS = 200
MOST_BYTES = 8 << 20
"""Of one answer: a page that repeats the largest form. Of visitors, whose forms are short, far less."""
MOST_BYTES_OF_A_VISITOR = 64 << 10


@dataclass
class Answer:
    """`owner` is the session that it is shown to; of visitors, who have none, there is only the id."""

    owner: int | None
    status: int
    headers: list[tuple[bytes, bytes]]
    until: float
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False


class Answers:
    """The kept answers by their id, oldest first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, Answer] = {}

    async def redirect(self, message: Message, scope: Scope) -> None:
        """Litestar's `before_send` hook: keep the page and send the browser to it instead."""
        if message["type"] == "http.response.start":
            if scope.get("method") == "POST" and _is_navigation(scope) and _is_page(message, scope):
                answer_id = self._keep(scope, message)
                location = f"{_shown_at(scope)}?{PARAMETER}={answer_id}".encode()
                others = [(name, value) for name, value in message["headers"] if not name.startswith(b"content-")]
                message["status"] = 303
                message["headers"] = [*others, (b"location", location), (b"content-length", b"0")]
                scope.setdefault("state", {})[PARAMETER] = self._kept[answer_id]
        elif message["type"] == "http.response.body" and (answer := scope.get("state", {}).get(PARAMETER)):
            answer.body += message["body"]
            answer.is_whole = not message["more_body"]
            message["body"] = b""

    def find(self, request: Request[Any, Any, Any], owner: int | None) -> Answer | None:
        """What this request asks to be shown again, if it is still here and was meant for this session."""
        answer_id = request.query_params.get(PARAMETER, "") if request.method == "GET" else ""
        self._forget_old()
        answer = self._kept.get(answer_id)
        return answer if answer is not None and answer.is_whole and answer.owner in (None, owner) else None

    def _keep(self, scope: Scope, message: Any) -> str:
        user = scope.get("user")
        owner = user.session_id if user else None
        self._forget_old()
        theirs = [answer_id for answer_id, answer in self._kept.items() if answer.owner == owner]
        for answer_id in theirs[: 1 - (MOST_OF_VISITORS if owner is None else MOST_OF_A_SESSION)]:
            del self._kept[answer_id]
        answer_id = secrets.token_urlsafe(16)
        headers = [(name, value) for name, value in message["headers"] if name in (b"content-type", b"retry-after")]
        self._kept[answer_id] = Answer(owner, message["status"], headers, self._clock() + KEPT_FOR_S)
        return answer_id

    def _forget_old(self) -> None:
        now = self._clock()
        for answer_id in [answer_id for answer_id, answer in self._kept.items() if answer.until <= now]:
            del self._kept[answer_id]


def _is_page(message: Any, scope: Scope) -> bool:
    """A page of a length that can be kept; not a redirect, a part of a page, or a file."""
    headers = dict(message["headers"])
    length = int(headers.get(b"content-length", -1))
    most = MOST_BYTES if scope.get("user") else MOST_BYTES_OF_A_VISITOR
    return headers.get(b"content-type", b"").startswith(b"text/html") and 0 < length <= most


def _is_navigation(scope: Scope) -> bool:
    """Whether the browser's tab will show the answer. Browsers send `Sec-Fetch-Mode` to trusted addresses only."""
    headers = dict(scope["headers"])
    if b"hx-request" in headers or "user" not in scope:  # what the guard turned away does nothing when sent again
        return False
    mode = headers.get(b"sec-fetch-mode")
    return mode == b"navigate" if mode else b"text/html" in headers.get(b"accept", b"")


def _shown_at(scope: Scope) -> str:
    """The form's own address if it has a page; or else its section's."""
    path = scope["path"]
    app: Litestar = scope["litestar_app"]
    try:
        app.asgi_router.handle_routing(path=path, method="GET")
    except HTTPException:
        return section(path)
    return quote(path)


async def send_again(answer: Answer, send: Send) -> None:
    length = (b"content-length", str(len(answer.body)).encode())
    await send({"type": "http.response.start", "status": answer.status, "headers": [*answer.headers, length]})
    await send({"type": "http.response.body", "body": bytes(answer.body), "more_body": False})
