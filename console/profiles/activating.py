"""Activate, roll back, and apply a fix: the requests that end in another launch."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from litestar import MediaType, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, URLEncodedBody
from litestar.response import Template

from appliance.profile import document as documents
from console.errors import Refusal
from console.pages import go_to, page
from console.parts import PageRequest, Profiles, TheActivator
from console.profiles.activation import Activated, Activator
from console.profiles.errors import Refused
from console.profiles.patch import read_patch
from console.profiles.web import STATUS, wants_json

Sent = URLEncodedBody[dict[str, str]]


@post("/profiles/{name:str}/activate", status_code=200)
async def activate(
    request: PageRequest, name: FromPath[str], data: Sent, activator: TheActivator
) -> Response[Any] | Template:
    """`revision` (7 or r7; the latest where it is left out), `anyway` to go on in spite of preflight's errors."""
    number = revision_number(data["revision"]) if data.get("revision") else None
    return await activate_and_follow(request, activator, name, number, anyway=data.get("anyway") == "yes")


@post("/profiles/-/roll-back", status_code=200)
async def roll_back(request: PageRequest, activator: TheActivator) -> Response[Any] | Template:
    return await _follow(request, activator.roll_back(), "is being started again")


@post("/profiles/{name:str}/apply-fix", status_code=200)
async def apply_fix(
    request: PageRequest, name: FromPath[str], data: Sent, profiles: Profiles, activator: TheActivator
) -> Response[Any] | Template:
    """Save `revision` with `patch` applied on top of the latest revision, then activate that."""
    broken = await profiles.revision(name, revision_number(data.get("revision", "")))
    latest = await profiles.revision(name)
    patch = read_patch(data.get("patch", ""))
    fixed = documents.apply_patch(broken.to_run(), patch)
    note = f"{broken.label} with the fix for {', '.join(patch)}."
    saved = await profiles.save(name, fixed, base=latest.number, author=request.user.name, note=note)
    return await activate_and_follow(request, activator, saved.revision.profile, saved.revision.number)


async def activate_and_follow(
    request: PageRequest, activator: Activator, name: str, number: int | None, *, anyway: bool = False
) -> Response[Any] | Template:
    return await _follow(request, activator.activate(name, number, anyway=anyway), "is being started")


def revision_number(text: str) -> int:
    """7 of `7` or `r7`."""
    digits = text.removeprefix("r")
    if not (digits.isdecimal() and digits.isascii() and len(digits) < 10):
        raise Refusal(
            422, f"{text!r} is no revision.", "Give its number, such as 7 or r7.", field="revision", value=text[:80]
        )
    return int(digits)


async def _follow(request: PageRequest, activation: Awaitable[Activated], does: str) -> Response[Any] | Template:
    """The dashboard, where the launch can be seen; or, where preflight refused, what it found."""
    try:
        activated = await activation
    except Refused as error:
        if wants_json(request):
            raise
        return page(
            request,
            "profiles/refused.html",
            title=f"{error.profile} r{error.revision} was not activated",
            refusal=error,
            status_code=STATUS[Refused],
        )
    if wants_json(request):
        return Response(activated, media_type=MediaType.JSON, status_code=200)
    return go_to(request, "/", say=f"{activated.what} {does}.")


route_handlers: list[HTTPRouteHandler] = [activate, roll_back, apply_fix]
