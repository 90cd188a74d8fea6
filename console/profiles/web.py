"""What the requests of this subject share: the parts they ask for, how refusals are answered, what a save tells the
page's script."""

from __future__ import annotations

from typing import Any

from litestar import MediaType, Request, Response
from litestar.datastructures import Cookie

from console import errors
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
    """The service's refusals as the console's: a page, a toast, or, for a program, JSON with all there is to know."""
    status = STATUS[type(error)]
    if wants_json(request):
        body = {"message": error.message, "remedy": error.remedy, "field": error.field, "value": error.value}
        if isinstance(error, Refused):
            body |= {"profile": error.profile, "revision": error.revision}
            body |= {"findings": error.findings, "attempt": error.launch}
        elif isinstance(error, InvalidDocument):
            body["problems"] = error.problems
        return Response(body, status_code=status, media_type=MediaType.JSON)
    refusal = errors.Refusal(status, error.message, error.remedy, field=error.field, value=error.value)
    return errors.on_refusal(request, refusal)


def wants_json(request: Request[Any, Any, Any]) -> bool:
    return request.headers.get("accept", "").startswith("application/json")


def saved_cookie(draft: str) -> Cookie:
    """Tells the form's script that what it keeps of the draft (a profile's name, or `-` for a new one) was saved."""
    return Cookie(key="ingot-saved", value=draft, path="/profiles", max_age=3600, samesite="strict")
