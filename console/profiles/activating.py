"""Activate, roll back, and apply a fix: the requests that end in another launch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, NamedTuple

from litestar import MediaType, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, URLEncodedBody
from litestar.response import Template

from appliance.home import Home
from appliance.profile import document as documents
from console.errors import Refusal
from console.launches.catalogue import Catalogue
from console.launches.follow_up import Kind, write_follow_up
from console.pages import go_to, page
from console.parts import Folder, PageRequest, Profiles, TheActivator, TheCatalogue
from console.profiles.activation import Activated, Activator
from console.profiles.errors import Refused
from console.profiles.patch import read_applied_patch
from console.profiles.web import STATUS, wants_json

Sent = URLEncodedBody[dict[str, str]]


class Mended(NamedTuple):
    """The launch that something is done about, and what: told on its page once it is done."""

    launch: str
    home: Home
    kind: Kind


@post("/profiles/{name:str}/activate", status_code=200)
async def activate(
    request: PageRequest, name: FromPath[str], data: Sent, activator: TheActivator
) -> Response[Any] | Template:
    """`revision` (7 or r7; the latest where it is left out), `anyway` to go on in spite of preflight's errors."""
    number = revision_number(data["revision"]) if data.get("revision") else None
    return await activate_and_follow(request, activator, name, number, anyway=data.get("anyway") == "yes")


@post("/profiles/-/roll-back", status_code=200)
async def roll_back(
    request: PageRequest, data: Sent, activator: TheActivator, home: Folder, catalogue: TheCatalogue
) -> Response[Any] | Template:
    """`launch`, where it is given, is the one that failed: its page will say that it was rolled back."""
    about = _about(data, home, catalogue, "roll-back")
    return await _follow(request, activator.roll_back(), "is being started again", about)


@post("/profiles/{name:str}/apply-fix", status_code=200)
async def apply_fix(
    request: PageRequest,
    name: FromPath[str],
    data: Sent,
    profiles: Profiles,
    activator: TheActivator,
    home: Folder,
    catalogue: TheCatalogue,
) -> Response[Any] | Template:
    """Save `revision` with `patch` applied on top of the latest revision, then activate that. `launch`, where it is
    given, is the one that failed: its page will say what came of it."""
    broken = await profiles.revision(name, revision_number(data.get("revision", "")))
    latest = await profiles.revision(name)
    patch = read_applied_patch(data.get("patch", ""))
    fixed = documents.apply_patch(broken.to_run(), patch)
    note = f"{broken.label} with the fix for {', '.join(patch)}."
    saved = await profiles.save(name, fixed, base=latest.number, author=request.user.name, note=note)
    activation = activator.activate(saved.revision.profile, saved.revision.number)
    return await _follow(request, activation, "is being started", _about(data, home, catalogue, "fix"))


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


def _about(data: dict[str, str], home: Home, catalogue: Catalogue, kind: Kind) -> Mended | None:
    """None where the form names no launch that there is."""
    launch = data.get("launch", "")
    return Mended(launch, home, kind) if launch and catalogue.find(launch) is not None else None


async def _follow(
    request: PageRequest, activation: Awaitable[Activated], does: str, about: Mended | None = None
) -> Response[Any] | Template:
    """The dashboard, where the launch can be seen, or the launch's own page, where it was made to mend another; where
    preflight refused, what it found."""
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
    if about is not None:
        await asyncio.to_thread(
            write_follow_up,
            about.home,
            about.launch,
            about.kind,
            launch=activated.launch,
            profile=activated.profile,
            revision=f"r{activated.revision}",
        )
    if wants_json(request):
        return Response(activated, media_type=MediaType.JSON, status_code=200)
    where = f"/launches/{activated.launch}" if about is not None else "/"
    return go_to(request, where, say=f"{activated.what} {does}.")


route_handlers: list[HTTPRouteHandler] = [activate, roll_back, apply_fix]
