"""Shared by the requests of this subject: answering refusals, and the cookie that reports a save to the page's
script."""

from __future__ import annotations

from typing import Any

from litestar import MediaType, Request, Response
from litestar.datastructures import Cookie

from console.conflicts import Conflict
from console.error_answers import on_refusal, wants_page
from console.profiles.errors import (
    EngineUnreachable,
    InUse,
    InvalidDocument,
    NameTaken,
    NotFound,
    NotWritten,
    ProfileRefusal,
    Refused,
    Stale,
    UnderWay,
)
from console.refusals import Refusal

STATUS: dict[type[ProfileRefusal], int] = {
    NotFound: 404,
    NameTaken: 409,
    Stale: 409,
    InUse: 409,
    UnderWay: 409,
    InvalidDocument: 422,
    Refused: 422,
    EngineUnreachable: 502,
    NotWritten: 507,
}


def on_profile_refusal(request: Request[Any, Any, Any], error: ProfileRefusal) -> Response[Any]:
    """The service's refusals as the console's: a page, a toast, or, for a program, JSON with all details."""
    status = STATUS[type(error)]
    if not wants_page(request):
        remedy = error.in_terminal if isinstance(error, NotFound) else error.remedy
        body = {"message": error.message, "remedy": remedy, "field": error.field, "value": error.value}
        if error.code:
            body["code"] = error.code
        if isinstance(error, Refused):
            body |= {"profile": error.profile, "revision": error.revision}
            body |= {"findings": error.findings, "attempt": error.launch}
        elif isinstance(error, InvalidDocument):
            body["problems"] = error.problems
        return Response(body, status_code=status, media_type=MediaType.JSON)
    about = {"field": error.field, "value": error.value}
    if status == 409:
        return on_refusal(request, Conflict(error.code, error.message, error.remedy, **about))
    return on_refusal(request, Refusal(status, error.message, error.remedy, **about))


def saved_cookie(draft: str) -> Cookie:
    """Tells the form's script that the draft it keeps (of a profile's name, or `-` for a new one) was saved."""
    return Cookie(key="ingot-saved", value=draft, path="/profiles", max_age=3600, samesite="strict")
