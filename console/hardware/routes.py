"""The Hardware page."""

from __future__ import annotations

import asyncio

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Template

from console.pages import page
from console.parts import PageRequest, TheMachines


@get("/hardware")
async def hardware(request: PageRequest, machines: TheMachines) -> Template:
    """Looks each time it is asked: memory comes and goes."""
    seen = await asyncio.to_thread(machines.look, 0.0)
    return page(request, "hardware/hardware.html", title="Hardware", seen=seen, found=seen.machine.inventory)


route_handlers: list[HTTPRouteHandler] = [hardware]
