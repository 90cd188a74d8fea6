"""Reports the engine's machine to the console, which may run elsewhere, or in a container without a GPU."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from litestar import Response, get
from msgspec import structs

from appliance.serving.parts import TheFrontDoor

if TYPE_CHECKING:
    from appliance.hardware.engine_machine import Machine
    from appliance.plan.launch import LaunchPlan


@get("/appliance/hardware", summary="The machine of the engine", answer="application/json")
async def hardware(front_door: TheFrontDoor) -> Response[bytes]:
    """Queries the machine each time, as free memory changes; in a thread, so that requests do not wait for it."""
    machine = await asyncio.to_thread(_look, front_door.supervisor.running)
    return Response(msgspec.json.encode(machine), media_type="application/json")


def _look(running: LaunchPlan | None) -> Machine:
    from appliance.hardware.engine_machine import (
        this_machine,
    )  # late: the first answer over HTTP does not wait for them
    from appliance.plan.launch import inventory_after

    machine = this_machine()
    if running is None:
        return machine
    return structs.replace(machine, free_for_next=inventory_after(machine.inventory, running))
