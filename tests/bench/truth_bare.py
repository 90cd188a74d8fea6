"""How long vLLM by itself takes from its start until it has ended with its error."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.bench.faults.fault import Fault
from tests.bench.faults.spoiling import write_model
from tests.running import free_port

AT_ONCE = 2
LIMIT_S = 120.0
# What Ingot gives it as well, so that both do the same work.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
}
ARGUMENTS = ("--generation-config=vllm", "--enforce-eager")

SERVES = float("inf")
"""It came up and served, as if nothing were wrong."""


def time_all(vllm: str, faults: Sequence[Fault], folder: Path) -> dict[str, float]:
    """Name -> seconds of each that vLLM can have; `SERVES` where it sees nothing wrong. A name stands for the same
    failure in both engines, and is run once."""
    wanted = {fault.name: fault for fault in faults if fault.bare is not None}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        taken = pool.map(lambda at: _time(vllm, wanted[at[1]], folder / f"bare-{at[0]}"), enumerate(wanted))
        return dict(zip(wanted, taken, strict=True))


def _time(vllm: str, fault: Fault, folder: Path) -> float:
    assert fault.bare is not None
    model = folder / "model"
    write_model(model)
    for spoil in (fault.model, fault.late):
        if spoil is not None:
            spoil(model)
    port = free_port()
    # A name of the hub is given as it is; everything else is a folder.
    command = [vllm, "serve", fault.path if "/" in fault.path else str(folder / fault.path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INGOT_")} | ENVIRONMENT
    environment["VLLM_CACHE_ROOT"] = str(folder.parent / "bare-caches")
    with (folder / "log").open("wb") as log:
        started = time.monotonic()
        process = subprocess.Popen(
            [*command, f"--port={port}", *ARGUMENTS, *fault.bare],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                if _healthy(port):
                    return SERVES
                if time.monotonic() - started > LIMIT_S:
                    raise TimeoutError(f"vLLM alone neither failed nor served within {LIMIT_S:g} s: {fault.name}")
                time.sleep(0.1)
            return time.monotonic() - started
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=1, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
