"""The dashboard, and the strip's buttons."""

from __future__ import annotations

from typing import Any, Literal

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Template

from console.pages import go_to, page
from console.parts import Control, PageRequest, TheFollower


@get("/")
async def dashboard(request: PageRequest) -> Template:
    return page(request, "dashboard/dashboard.html", title="Dashboard")


@post("/engine/{action:str}")
async def engine_action(
    request: PageRequest, action: FromPath[Literal["start", "stop", "restart"]], control: Control, follower: TheFollower
) -> Response[Any]:
    """Start, stop or restart the engine; the strip shows how it goes."""
    if action == "start":
        await control.start()
    elif action == "stop":
        await control.stop()
    else:
        await control.restart()
    follower.wake()
    return go_to(request, "/")


route_handlers: list[HTTPRouteHandler] = [dashboard, engine_action]
