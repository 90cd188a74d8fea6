"""The strip's actions on the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import URLEncodedBody

from console.authors import done_by
from console.engine_control.actions import ACTIONS
from console.engine_control.operations import WhenChosen
from console.pages import go_to
from console.parts import PageRequest, TheEngine, TheFollower


@dataclass(frozen=True)
class EndRequests:
    """What to do about running requests."""

    when: WhenChosen = ""


@post("/engine/start")
async def start(request: PageRequest, engine: TheEngine) -> Response[Any]:
    await engine.start()
    return go_to(request, "/")


@post("/engine/stop")
async def stop(
    request: PageRequest, data: URLEncodedBody[EndRequests], engine: TheEngine, follower: TheFollower
) -> Response[Any]:
    when = await engine.choose(data.when, follower.view.asked(ACTIONS["stop"]))
    await engine.stop(when, why=done_by("Stopped", request.user.name))
    return go_to(request, "/")


@post("/engine/restart")
async def restart(
    request: PageRequest, data: URLEncodedBody[EndRequests], engine: TheEngine, follower: TheFollower
) -> Response[Any]:
    when = await engine.choose(data.when, follower.view.asked(ACTIONS["restart"]))
    await engine.restart(when, why=done_by("Restarted", request.user.name))
    return go_to(request, "/")


@post("/engine/finish-now")
async def finish_now(request: PageRequest, engine: TheEngine) -> Response[Any]:
    """Do what the engine is draining for now, without waiting for its requests."""
    await engine.finish_now(request.user.name)
    return go_to(request, "/")


route_handlers: list[HTTPRouteHandler] = [start, stop, restart, finish_now]
