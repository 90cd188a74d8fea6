"""What the engine of this state folder holds of the GPUs now: a launch that replaces it finds that free."""

from __future__ import annotations

import msgspec
import psutil
from msgspec import structs

from appliance.hardware.gpu import Gpu
from appliance.hardware.machine import Inventory
from appliance.home import Home

# How far the clock may have been set since the front door wrote when it began.
SAME_START_S = 120.0


def without_own_engine(inventory: Inventory, home: Home) -> Inventory:
    """The inventory as it would be had that engine ended. As it is where none runs, or where it runs in another
    container, whose processes are invisible here."""
    if not any(gpu.processes for gpu in inventory.gpus):
        return inventory
    own = _family(home)
    return structs.replace(inventory, gpus=tuple(_without(gpu, own) for gpu in inventory.gpus)) if own else inventory


def _without(gpu: Gpu, own: frozenset[int]) -> Gpu:
    ours = [process for process in gpu.processes if process.pid in own]
    freed = sum(process.memory_bytes or 0 for process in ours)
    others = tuple(process for process in gpu.processes if process not in ours)
    free = min(gpu.memory_free_bytes + freed, gpu.memory_bytes)
    return structs.replace(gpu, memory_free_bytes=free, processes=others)


def _family(home: Home) -> frozenset[int]:
    """The front door that the lock names, and all that it has started."""
    try:
        owner = msgspec.json.decode(home.lock.read_bytes())
        front_door = psutil.Process(owner["pid"])
        if abs(front_door.create_time() - owner["started"]) > SAME_START_S:
            return frozenset()
        return frozenset({front_door.pid, *(child.pid for child in front_door.children(recursive=True))})
    except (OSError, msgspec.DecodeError, LookupError, TypeError, ValueError, psutil.Error):  # no engine, or no lock
        return frozenset()
