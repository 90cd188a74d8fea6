"""Every refusal and failure that reaches a browser goes through here: one status, what happened, what to do."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, InternalServerException, ValidationException
from litestar.response import Redirect
from litestar.utils.scope.state import ScopeState

from console.conflicts import Conflict
from console.db.failures import DATABASE_ERRORS, DatabaseError, explain, sqlite_says
from console.engine_control.base import EngineControlError
from console.engine_control.operations import RequestsRunning
from console.formats import counted
from console.invalid_values import refuse_value
from console.pages import fragment, page, section
from console.refusals import TITLES, Refusal, SignInNeeded

log = logging.getLogger(__name__)

NOT_SHOWN_AGAIN = frozenset({"password", "new-password", "code"})


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """What programs get."""

    message: str
    remedy: str = ""
    code: str | None = None
    field: str | None = None
    value: Any = None


def on_refusal(request: Request[Any, Any, Any], error: Refusal) -> Response[Any]:
    return _answer(request, error)


def on_http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """Litestar's own refusals, reworded where they say too little."""
    if error.status_code >= 500:
        return on_fault(request, error)
    if error.status_code == 404:
        refusal = Refusal(
            404, f"There is no page at {request.scope['path']}.", "Check the address, or go to the dashboard."
        )
    elif error.status_code == 405 and request.method == "GET" and wants_page(request):
        # The address of a form, opened again: show the page that it belongs to.
        return Redirect(section(request.scope["path"]), status_code=303)
    elif error.status_code == 405:
        refusal = _not_allowed(request, error)
    elif error.status_code == 413:
        refusal = Refusal(413, "The request is larger than 4 MiB.", "Send less at once.")
    elif isinstance(error, ValidationException):
        refusal = refuse_value(request, error)
    else:
        refusal = Refusal(error.status_code, error.detail or TITLES.get(error.status_code, "Refused"))
    return _answer(request, refusal)


def _not_allowed(request: Request[Any, Any, Any], error: HTTPException) -> Refusal:
    allowed = (error.headers or {}).get("allow", "")
    usable = [method for method in allowed.split(", ") if method not in ("", "OPTIONS")]
    remedy = f"Use {' or '.join(usable)}." if usable else "Use the console's pages."
    return Refusal(405, f"{request.scope['path']} does not take {request.method} requests.", remedy, allowed=allowed)


def on_sign_in_needed(request: Request[Any, Any, Any], error: SignInNeeded) -> Response[Any]:
    if request.headers.get("hx-request") == "true":
        return Response(content=None, status_code=401, headers={"HX-Redirect": error.url})
    if request.method == "GET" and wants_page(request):
        return Redirect(error.url, status_code=303)
    return _answer(request, Refusal(401, "Nobody is signed in.", f"Sign in at {error.url}."))


def on_database_error(request: Request[Any, Any, Any], error: DatabaseError) -> Response[Any]:
    """`console.db.failures` says what a database failure means."""
    failure = explain(error, request.app.state.console.home.database)
    if failure is not None:
        return _answer(request, Refusal(*failure))
    log.error("Database error at %s %s", request.method, request.scope["path"], exc_info=error)
    message = f"The database reported an error: {sqlite_says(error)}."
    refusal = Refusal(500, message, "The console's output has the details.")
    return _answer(request, refusal)


def on_engine_control_error(request: Request[Any, Any, Any], error: EngineControlError) -> Response[Any]:
    return _answer(request, Refusal(503, error.finding.message, error.remedy))


def on_requests_running(request: Request[Any, Any, Any], error: RequestsRunning) -> Response[Any]:
    """Ask whether to wait for them. The page's script asks beforehand; this is for browsers without it, for requests
    that arrived in between, and for programs."""
    said = "Requests may be"
    if error.requests is not None:
        said = counted(error.requests, "request is", "requests are")
    remedy = "Send `when` with `now` to end them, or `when-finished` to wait."
    refusal = Conflict("requests-running", f"{said} running.", remedy, field="when")
    if request.headers.get("hx-request") == "true" or not wants_page(request):
        return _answer(request, refusal)
    sent = [(name, text) for name, text in _sent_form(request) if name != "when"]
    return page(
        request, "end-requests.html", title=error.what, requests=error.requests, sent=sent, status_code=refusal.status
    )


def on_fault(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """An unexpected error: the traceback goes to the console's output, not to the browser."""
    if isinstance(error, InternalServerException) and error.detail == "client disconnected prematurely":
        # The browser moved on before its request was read: nobody is waiting for the answer.
        return _answer(request, Refusal(400, "The request was cancelled.", "Send it again if you still want it."))
    log.error("Error at %s %s", request.method, request.scope["path"], exc_info=error)
    what = f"{request.method} {request.scope['path']} failed with {type(error).__name__}. The engine is not affected."
    return _answer(request, Refusal(500, what, "The console's output has the traceback. Please report it."))


def wants_page(request: Request[Any, Any, Any]) -> bool:
    """Whether a person's browser asked, and not a program."""
    accept = request.headers.get("accept", "")
    return "text/html" in accept or (accept in ("", "*/*") and not request.scope["path"].startswith("/live"))


async def refuse_json_forms(request: Request[Any, Any, Any]) -> None:
    """Before a form is read: JSON would be read as an empty one, and blamed for what it holds."""
    takes_form = "data" in request.route_handler.parsed_fn_signature.parameters
    if takes_form and request.content_type[0] == "application/json":
        raise Refusal(
            415, "This address takes a form, not JSON.", "Send the same fields as application/x-www-form-urlencoded."
        )


def _answer(request: Request[Any, Any, Any], refusal: Refusal) -> Response[Any]:
    if request.headers.get("hx-request") == "true":
        return fragment("pieces/error.html", refusal=refusal, status_code=refusal.status, headers=refusal.headers)
    if not wants_page(request):
        body = ErrorBody(refusal.message, refusal.remedy, refusal.code, refusal.field, refusal.value)
        return Response(body, status_code=refusal.status, media_type=MediaType.JSON, headers=refusal.headers)
    return page(
        request,
        "error.html",
        title=refusal.title,
        refusal=refusal,
        sent=_sent_form(request),
        status_code=refusal.status,
        headers=refusal.headers,
    )


def _sent_form(request: Request[Any, Any, Any]) -> list[tuple[str, str]]:
    """The refused form's fields, so that the page can offer to send it again and nothing typed is lost."""
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
