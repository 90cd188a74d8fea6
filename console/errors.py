"""Every refusal and failure that reaches a browser goes through here: one status, what happened, what to do."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, InternalServerException, ValidationException
from litestar.response import Redirect
from litestar.utils.scope.state import ScopeState

from console.db.failures import DATABASE_ERRORS, DatabaseError, explain, sqlite_says
from console.engine_control.base import EngineControlError
from console.engine_control.operations import RequestsRunning
from console.formats import counted

log = logging.getLogger(__name__)


class Refusal(Exception):
    """Something a person asked for cannot be done: an HTTP status, what happened, and what to do about it."""

    def __init__(
        self, status: int, message: str, remedy: str = "", *, field: str | None = None, value: object = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.remedy = remedy
        self.field = field
        self.value = value


class SignInNeeded(Exception):
    """The page needs somebody signed in; `url` is where that is done."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """What programs get."""

    message: str
    remedy: str = ""
    field: str | None = None
    value: Any = None


TITLES = {
    400: "That request could not be read",
    401: "Sign in first",
    403: "Refused",
    404: "There is nothing here",
    405: "That is not possible here",
    409: "Changed by somebody else",
    413: "Too large",
    422: "That value cannot be used",
    429: "Too many tries",
    500: "Something went wrong in the console",
    502: "The engine could not be reached",
    503: "Not possible right now",
    507: "The disk is full",
}

NOT_SHOWN_AGAIN = frozenset({"password", "new-password", "code"})


def on_refusal(request: Request[Any, Any, Any], error: Refusal) -> Response[Any]:
    return _answer(request, error)


def on_http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """Litestar's own refusals, in our words where its own say too little."""
    if error.status_code >= 500:
        return on_fault(request, error)
    if error.status_code == 404:
        refusal = Refusal(
            404, f"No page has the address {request.url.path}.", "Go to the dashboard and start from there."
        )
    elif error.status_code == 405 and request.method == "GET" and _wants_page(request):
        from console.pages import section  # late: pages import this module

        # The address of a form, opened again: show the page that it belongs to.
        return Redirect(section(request.url.path), status_code=303)
    elif error.status_code == 413:
        refusal = Refusal(413, "What was sent is larger than the console accepts.", "Send at most 4 MiB.")
    elif isinstance(error, ValidationException):
        refusal = _validation(error)
    else:
        refusal = Refusal(error.status_code, error.detail or TITLES.get(error.status_code, "Refused"))
    return _answer(request, refusal)


def on_sign_in_needed(request: Request[Any, Any, Any], error: SignInNeeded) -> Response[Any]:
    if request.headers.get("hx-request") == "true":
        return Response(content=None, status_code=401, headers={"HX-Redirect": error.url})
    if request.method == "GET" and _wants_page(request):
        return Redirect(error.url, status_code=303)
    return _answer(request, Refusal(401, "Nobody is signed in.", f"Sign in at {error.url}."))


def on_database_error(request: Request[Any, Any, Any], error: DatabaseError) -> Response[Any]:
    """`console.db.failures` says what a database failure means."""
    failure = explain(error, request.app.state.console.home.database)
    if failure is not None:
        return _answer(request, Refusal(*failure))
    log.error("Database error at %s %s", request.method, request.url.path, exc_info=error)
    message = f"The database refused: {sqlite_says(error)}."
    refusal = Refusal(500, message, "Look at the console's output for the whole story.")
    return _answer(request, refusal)


def on_engine_control_error(request: Request[Any, Any, Any], error: EngineControlError) -> Response[Any]:
    return _answer(request, Refusal(503, error.finding.message, error.remedy))


def on_requests_running(request: Request[Any, Any, Any], error: RequestsRunning) -> Response[Any]:
    """Ask whether to wait for them: the page's script asks beforehand, this is for browsers without it, for requests
    that came in between, and for programs."""
    count = counted(error.requests, "request is", "requests are")
    refusal = Refusal(409, f"{count} running.", "Send `when`: now, or when-finished.", field="when")
    if request.headers.get("hx-request") == "true" or not _wants_page(request):
        return _answer(request, refusal)
    from console.pages import page

    sent = [(name, text) for name, text in _sent_form(request) if name != "when"]
    return page(
        request, "end-requests.html", title=error.what, requests=error.requests, sent=sent, status_code=refusal.status
    )


def on_fault(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """A fault of ours: the trace goes to the console's output, not to the browser."""
    if isinstance(error, InternalServerException) and error.detail == "client disconnected prematurely":
        # Litestar's word for a browser that went on before its request was read: nobody is there to be answered.
        return _answer(request, Refusal(400, "The request was called off.", "Send it again if it was meant."))
    log.error("Fault at %s %s", request.method, request.url.path, exc_info=error)
    what = f"{request.method} {request.url.path} ended in {type(error).__name__}. The engine is not touched by it."
    return _answer(request, Refusal(500, what, "The console's output has the trace: please report it."))


def _validation(error: ValidationException) -> Refusal:
    problems = error.extra if isinstance(error.extra, list) else []
    first = problems[0] if problems else {}
    field = first.get("key") if isinstance(first, dict) else None
    said = first.get("message") if isinstance(first, dict) else None
    message = f"{field}: {said}" if field else (said or error.detail)
    return Refusal(422, str(message), "Correct it and send it again.", field=field)


def _wants_page(request: Request[Any, Any, Any]) -> bool:
    accept = request.headers.get("accept", "")
    return "text/html" in accept or (accept in ("", "*/*") and not request.url.path.startswith("/live"))


def _answer(request: Request[Any, Any, Any], refusal: Refusal) -> Response[Any]:
    from console.pages import fragment, page

    title = TITLES.get(refusal.status, "Refused")
    if request.headers.get("hx-request") == "true":
        return fragment("pieces/error.html", refusal=refusal, title=title, status_code=refusal.status)
    if not _wants_page(request):
        body = ErrorBody(refusal.message, refusal.remedy, refusal.field, refusal.value)
        return Response(body, status_code=refusal.status, media_type=MediaType.JSON)
    return page(
        request,
        "error.html",
        title=title,
        refusal=refusal,
        sent=_sent_form(request),
        status_code=refusal.status,
    )


def _sent_form(request: Request[Any, Any, Any]) -> list[tuple[str, str]]:
    """What the refused form held, so that the page can offer to send it again and nothing typed is lost."""
    form = ScopeState.from_scope(request.scope).form
    if not isinstance(form, dict):
        return []
    fields: list[tuple[str, str]] = []
    for name, value in form.items():
        values = value if isinstance(value, list) else [value]
        fields += [(name, text) for text in values if isinstance(text, str) and name not in NOT_SHOWN_AGAIN]
    return fields


EXCEPTION_HANDLERS: dict[int | type[Exception], Any] = {
    Refusal: on_refusal,
    SignInNeeded: on_sign_in_needed,
    HTTPException: on_http_exception,
    **dict.fromkeys(DATABASE_ERRORS, on_database_error),
    EngineControlError: on_engine_control_error,
    RequestsRunning: on_requests_running,
    Exception: on_fault,
}
