"""The dashboard."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Template
from sqlalchemy import func, select

from console.access import keys
from console.dashboard.examples import examples, next_model
from console.dashboard.now import now
from console.db.models import ApiKey, Launch
from console.launches.follow_up import dismiss
from console.live.follower import LoadPoint
from console.pages import go_to, page
from console.parts import PageRequest, Session, TheCatalogue, TheFollower
from console.refusals import Refusal

NEW_USER_LAUNCHES = 3
"""Up to this many launches the dashboard offers the playground as the next step."""


@get("/")
async def dashboard(request: PageRequest, session: Session, follower: TheFollower, catalogue: TheCatalogue) -> Template:
    key_required = await keys.is_required(session)
    key_count = await session.scalar(select(func.count()).select_from(ApiKey))
    launches = await session.scalar(select(func.count()).select_from(Launch))
    return page(
        request,
        "dashboard/dashboard.html",
        title="Dashboard",
        now=await asyncio.to_thread(now, follower.view, catalogue),
        examples=examples(follower.view, await asyncio.to_thread(next_model, catalogue.home), keyed=key_required),
        key_required=key_required,
        key_count=key_count or 0,
        new_here=(launches or 0) <= NEW_USER_LAUNCHES,
    )


@get("/dashboard/load")
async def load(follower: TheFollower) -> list[LoadPoint]:
    """The last ten minutes: [time, output tokens a second, running, waiting, share of the cache in use]."""
    return list(follower.history)


@post("/dashboard/attempts/{launch_id:str}/dismiss", status_code=200)
async def dismiss_attempt(
    request: PageRequest, follower: TheFollower, catalogue: TheCatalogue, launch_id: FromPath[str]
) -> Response[Any]:
    """Of a refused attempt: every open dashboard drops its card."""
    folder = catalogue.find(launch_id)
    if folder is None or folder.started_an_engine():
        message = f"{launch_id} is not a refused attempt."
        raise Refusal(404, message, "The Launches page lists all of them.", field="launch", value=launch_id)
    try:
        await asyncio.to_thread(dismiss, folder.path)
    except OSError as error:
        message = f"The attempt could not be dismissed: {error.strerror} ({error.filename})."
        raise Refusal(503, message, f"Make {folder.path} writable for the user that runs the console.") from error
    follower.wake()
    return go_to(request, "/")


route_handlers: list[HTTPRouteHandler] = [dashboard, load, dismiss_attempt]
