"""Activate, roll back, and apply a fix: the requests that end in another launch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from litestar import MediaType, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, URLEncodedBody
from litestar.response import Template

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.profile import document as documents
from console.engine_control.operations import WhenChosen
from console.error_answers import wants_page
from console.formats import counted
from console.launches.follow_up import Kind, write_follow_up
from console.pages import go_to, page
from console.parts import Folder, PageRequest, Profiles, TheActivator, TheCatalogue, TheEngine
from console.profiles.activator import Activated
from console.profiles.errors import Refused
from console.profiles.patch import read_applied_patch
from console.profiles.web import STATUS
from console.refusals import Refusal


@dataclass(frozen=True)
class Activation:
    """`revision` is 7 or r7, or empty for the latest; `anyway` ignores preflight's errors."""

    revision: str = ""
    anyway: Literal["", "yes"] = ""
    when: WhenChosen = ""


@dataclass(frozen=True)
class RollBack:
    """`launch`, if given, is the one that failed: its page will say that it was rolled back."""

    launch: str = ""
    when: WhenChosen = ""


@dataclass(frozen=True)
class AppliedFix:
    """`patch`, as JSON, is saved on top of the latest revision, applied to `revision`; `launch` as of RollBack."""

    revision: str = ""
    patch: str = ""
    launch: str = ""
    when: WhenChosen = ""


class Remedied(NamedTuple):
    """The launch that is being fixed, and how: shown on its page afterwards."""

    launch: str
    home: Home
    kind: Kind


@post("/profiles/{name:str}/activate", status_code=200)
async def activate(
    request: PageRequest,
    name: FromPath[str],
    data: URLEncodedBody[Activation],
    activator: TheActivator,
    engine: TheEngine,
) -> Response[Any] | Template:
    number = revision_number(data.revision) if data.revision else None
    when = await engine.choose(data.when, f"Activate {name}")
    return await follow(
        request, activator.activate(name, number, anyway=data.anyway == "yes", when=when, who=request.user.name)
    )


@post("/profiles/-/roll-back", status_code=200)
async def roll_back(
    request: PageRequest,
    data: URLEncodedBody[RollBack],
    activator: TheActivator,
    engine: TheEngine,
    home: Folder,
    catalogue: TheCatalogue,
) -> Response[Any] | Template:
    when = await engine.choose(data.when, "Roll back")
    back = activator.roll_back(when, who=request.user.name)
    return await follow(request, back, _remedied(data.launch, home, catalogue, "roll-back"))


@post("/profiles/{name:str}/apply-fix", status_code=200)
async def apply_fix(
    request: PageRequest,
    name: FromPath[str],
    data: URLEncodedBody[AppliedFix],
    profiles: Profiles,
    activator: TheActivator,
    engine: TheEngine,
    home: Folder,
    catalogue: TheCatalogue,
) -> Response[Any] | Template:
    """Save the fixed profile as a new revision, then activate that."""
    broken = await profiles.revision(name, revision_number(data.revision))
    latest = await profiles.revision(name)
    patch = read_applied_patch(data.patch)
    fixed = documents.apply_patch(broken.to_run(), patch)
    when = await engine.choose(data.when, "Apply and restart")
    note = f"{broken.label} with the fix for {', '.join(patch)}."
    saved = (await profiles.save(name, fixed, base=latest.number, author=request.user.name, note=note)).revision
    activation = activator.activate(saved.profile, saved.number, when=when, who=request.user.name)
    return await follow(request, activation, _remedied(data.launch, home, catalogue, "fix"))


def revision_number(text: str) -> int:
    """7 of `7` or `r7`."""
    digits = text.removeprefix("r")
    if not (digits.isdecimal() and digits.isascii() and len(digits) < 10):
        raise Refusal(
            422, f"{text!r} is not a revision.", "Use a number, such as 7 or r7.", field="revision", value=text[:80]
        )
    return int(digits)


def _remedied(launch: str, home: Home, catalogue: Catalogue, kind: Kind) -> Remedied | None:
    """None where the form names no launch that there is."""
    return Remedied(launch, home, kind) if launch and catalogue.find(launch) is not None else None


async def follow(
    request: PageRequest, activation: Awaitable[Activated], remedied: Remedied | None = None
) -> Response[Any] | Template:
    """The dashboard, which shows the launch, or the page of the new launch if it fixes another; if preflight refused,
    its findings."""
    try:
        activated = await activation
    except Refused as error:
        if not wants_page(request):
            raise
        return page(
            request,
            "profiles/refused.html",
            title=f"{error.profile} r{error.revision} was not activated",
            refusal=error,
            status_code=STATUS[Refused],
        )
    if remedied is not None:
        await asyncio.to_thread(
            write_follow_up,
            remedied.home,
            remedied.launch,
            remedied.kind,
            launch=activated.launch,
            profile=activated.profile,
            revision=f"r{activated.revision}",
        )
    if not wants_page(request):
        return Response(activated, media_type=MediaType.JSON, status_code=200)
    where = f"/launches/{activated.launch}" if remedied is not None else "/"
    return go_to(request, where, say=_told(activated))


def _told(activated: Activated) -> str:
    if activated.waits_for is None:
        return f"{activated.what} starts when running requests have finished."
    if activated.waits_for:
        return f"{activated.what} starts when {counted(activated.waits_for, 'request has', 'requests have')} finished."
    return f"Starting {activated.what}."


route_handlers: list[HTTPRouteHandler] = [activate, roll_back, apply_fix]
