"""The Hardware page."""

from __future__ import annotations

import asyncio

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Template

from appliance.hardware import inventory
from console.pages import page
from console.parts import PageRequest


@get("/hardware")
async def hardware(request: PageRequest) -> Template:
    """Looks each time it is asked: memory comes and goes."""
    found = await asyncio.to_thread(inventory)
    return page(request, "hardware/hardware.html", title="Hardware", found=found)


route_handlers: list[HTTPRouteHandler] = [hardware]
