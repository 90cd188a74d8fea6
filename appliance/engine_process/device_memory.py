"""Whether a GPU's memory is free again after an engine's end: a driver needs a moment to reclaim what a killed process
used, sometimes never does, and the next start must not be the first to notice."""

from __future__ import annotations

import time

from appliance.hardware.gpu import Gpu
from appliance.hardware.machine import inventory
from appliance.profile.sizes import size_text

WITHIN_S = 5.0
AGAIN_S = 0.2
# What a driver keeps for itself moves by this much from one look to the next.
SLACK_BYTES = 256 << 20


def wait_until_free(before: Gpu, within_s: float = WITHIN_S) -> list[str]:
    """Blocking. Lines for the launch's log where the memory that was free `before` the launch is not free again; none
    where it is, or is unknown: memory shared with the host comes and goes with everything else."""
    if before.memory_kind == "unified":
        return []
    deadline = time.monotonic() + within_s
    while True:
        now = next((gpu for gpu in inventory().gpus if gpu.uuid == before.uuid), None)
        if now is None:
            return [f"ingot: {before} no longer responds; see `nvidia-smi`."]
        held = before.memory_free_bytes - now.memory_free_bytes
        if held <= SLACK_BYTES:
            return []
        if time.monotonic() > deadline:
            return [_still_held(now, held, within_s)]
        time.sleep(AGAIN_S)


def _still_held(gpu: Gpu, held: int, waited_s: float) -> str:
    holders = ", ".join(map(str, gpu.processes))
    who = f"Processes using it: {holders}." if holders else "No process using it is visible from here."
    return (
        f"ingot: {waited_s:.0f} s after the engine ended, {size_text(held)} of {gpu} that was free before its start is "
        f"still in use. {who}"
    )
