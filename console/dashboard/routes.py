"""The dashboard."""

from __future__ import annotations

import asyncio

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Template
from sqlalchemy import func, select

from console.dashboard.examples import examples
from console.dashboard.now import now
from console.db.models import ApiKey, Launch
from console.live.follower import LoadPoint
from console.pages import page
from console.parts import PageRequest, Session, TheCatalogue, TheFollower

NEW_USER_LAUNCHES = 3
"""Up to this many launches the dashboard offers the playground as the next step."""


@get("/")
async def dashboard(request: PageRequest, session: Session, follower: TheFollower, catalogue: TheCatalogue) -> Template:
    keys = await session.scalar(select(func.count()).select_from(ApiKey))
    launches = await session.scalar(select(func.count()).select_from(Launch))
    return page(
        request,
        "dashboard/dashboard.html",
        title="Dashboard",
        now=await asyncio.to_thread(now, follower.view, catalogue),
        examples=examples(follower.view, keyed=bool(keys)),
        keyed=bool(keys),
        new_here=(launches or 0) <= NEW_USER_LAUNCHES,
    )


@get("/dashboard/load")
async def load(follower: TheFollower) -> list[LoadPoint]:
    """The last ten minutes: [time, output tokens a second, running, waiting, share of the cache in use]."""
    return list(follower.history)


route_handlers: list[HTTPRouteHandler] = [dashboard, load]
