"""What machine this engine runs on, for the console: that may run elsewhere, or in a container that sees no GPU."""

from __future__ import annotations

import asyncio

import msgspec
from litestar import Response, get


@get("/appliance/hardware")
async def hardware() -> Response[bytes]:
    """Looks each time it is asked: memory comes and goes. In a thread, so that requests do not wait for it."""
    from appliance.hardware.engine_machine import this_machine  # late: the first answer over HTTP does not wait for it

    machine = await asyncio.to_thread(this_machine)
    return Response(msgspec.json.encode(machine), media_type="application/json")
