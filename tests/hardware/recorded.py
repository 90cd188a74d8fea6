"""The recorded machines, as they are and with changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.hardware import Gpu, Host, Inventory
from appliance.hardware.machine import replayed

RECORDINGS = Path(__file__).parent / "recordings"
GIB = 1 << 30


def machine_of(name: str) -> Inventory:
    return replayed(RECORDINGS / f"{name}.json")


def changed(name: str, folder: Path, change: Callable[[dict[str, Any]], object]) -> Inventory:
    """The recorded machine after `change` has altered the recording."""
    recording = json.loads((RECORDINGS / f"{name}.json").read_text())
    change(recording)
    path = folder / "changed.json"
    path.write_text(json.dumps(recording))
    return replayed(path)


def made_of(*gpus: Gpu, problem: str | None = None, divided: tuple[Gpu, ...] = ()) -> Inventory:
    host = Host(cores=8, memory_bytes=64 * GIB, memory_available_bytes=60 * GIB)
    return Inventory(gpus=gpus, driver_version="580", cuda_version="13.0", host=host, problem=problem, divided=divided)
