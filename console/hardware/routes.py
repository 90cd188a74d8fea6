"""The Hardware page."""

from __future__ import annotations

import asyncio

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Template

from console.hardware.live import context
from console.pages import page
from console.parts import PageRequest, TheMachines


@get("/hardware")
async def hardware(request: PageRequest, machines: TheMachines) -> Template:
    """Looks each time it is asked."""
    seen = await asyncio.to_thread(machines.look, 0.0)
    return page(request, "hardware/hardware.html", title="Hardware", **context(seen))


route_handlers: list[HTTPRouteHandler] = [hardware]
