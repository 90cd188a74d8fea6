"""The whole front door on a GPU, sealed: preflight on real hardware, an answer, and the ends that only a GPU shows.

INGOT_GPU_CAST names the cast of this GPU's architecture.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.running import INGOT, environment, fetch, free_port, wait_for
from tests.tiny import ALIGNED, write_checkpoint

CAST = os.environ.get("INGOT_GPU_CAST")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(CAST is None, reason="needs a cast, named in INGOT_GPU_CAST"),
]
SLACK_BYTES = 256 << 20


class Door:
    """`ingot serve` on a state folder, sealed to the cast."""

    def __init__(self, home: Path, **settings: Any) -> None:
        profile = home / "profile.json"
        profile.write_text(json.dumps({"schema": 1, "name": "gpu", "model": {"path": "tiny"}, **settings}))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        variables = {n: v for n, v in environment(home).items() if not n.startswith("TRITON_")}
        self.process = subprocess.Popen(
            [*INGOT, "serve", "--port", str(port), "--profile", str(profile)],
            env={**variables, "INGOT_CAST": str(CAST)},
        )

    def state(self) -> dict[str, Any]:
        status, answer = fetch(f"{self.url}/appliance/state")
        return dict(answer) if status == 200 else {"state": "none"}

    def wait(self, *states: str, timeout_s: float = 90) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            state = self.state()
            assert state["state"] in (*states, "none", "preflight", "starting", "ready"), state
            return state if state["state"] in states else None

        return wait_for(f"it is {states}", look, timeout_s, 0.01)

    def core(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if "appliance.engine" in child.cmdline())

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    model = home / "models" / "tiny"
    write_checkpoint(model, "qwen3", dtype="bfloat16", max_position_embeddings=2048, **ALIGNED)
    return home


@pytest.fixture
def door(home: Path) -> Iterator[Door]:
    door = Door(home)
    yield door
    door.end()


def free_bytes() -> int:
    return int(torch.cuda.mem_get_info()[0])


def test_the_hardware_is_read(tmp_path: Path) -> None:
    """Name, memory, capability, driver and temperature of the GPU that torch sees; what is printed can be replayed."""
    done = subprocess.run(
        [*INGOT, "hardware", "--json"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(done.stdout)
    print(done.stdout, file=sys.stderr)
    (gpu, *_) = found["gpus"]
    assert gpu["name"] == torch.cuda.get_device_name()
    assert tuple(gpu["compute_capability"]) == torch.cuda.get_device_capability()
    assert abs(gpu["memory_bytes"] - torch.cuda.get_device_properties(0).total_memory) < 2 << 30
    assert found["driver_version"]
    assert 0 < gpu["temperature_celsius"] < 120


def test_it_serves_sealed_and_ends_without_a_trace(home: Path, door: Door) -> None:
    """No finding is an error; a chat is answered; the launch says what it took; after the end the memory is free."""
    before = free_bytes()
    state = door.wait("ready")
    launch = state["launch"]
    assert state["sealed"] is True
    print(json.dumps({"ready_after_s": launch["ready_after_s"], "phases": launch["phases"],
                      "findings": [f["message"] for f in launch.get("findings", [])]}), file=sys.stderr)  # fmt: skip
    body = {"model": "gpu", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
    status, answer = fetch(f"{door.url}/v1/chat/completions", body)
    assert status == 200
    assert answer["usage"]["completion_tokens"] > 0
    assert before - free_bytes() > SLACK_BYTES
    door.end()
    assert before - free_bytes() <= SLACK_BYTES


def test_a_killed_core_is_reported_within_a_second_and_its_memory_comes_back(door: Door) -> None:
    """As on a CPU; and what the driver takes back late is waited for before anything else is started."""
    before = free_bytes()
    door.wait("ready")
    door.core().kill()
    killed = time.monotonic()
    state = door.wait("failed", timeout_s=3)
    assert time.monotonic() - killed < 1
    assert "SIGKILL" in state["launch"]["exit_status"]
    wait_for("the memory is free", lambda: before - free_bytes() <= SLACK_BYTES, 5)


def test_a_stopped_core_is_reported_within_twenty_seconds(door: Door) -> None:
    """It holds the GPU, and no signal but SIGKILL reaches it."""
    before = free_bytes()
    door.wait("ready")
    door.core().suspend()
    stopped = time.monotonic()
    door.wait("hung", timeout_s=20)
    print(f"told as hung after {time.monotonic() - stopped:.1f} s", file=sys.stderr)
    wait_for("the memory is free", lambda: before - free_bytes() <= SLACK_BYTES, 5)


def test_a_killed_front_door_leaves_the_gpu_free(door: Door) -> None:
    """Within three seconds, though nobody is left to end the core but itself."""
    before = free_bytes()
    door.wait("ready")
    door.process.kill()
    door.process.wait()
    wait_for("the memory is free", lambda: before - free_bytes() <= SLACK_BYTES, 3)


def test_too_little_memory_is_refused_with_who_holds_it(home: Path) -> None:
    """Another process holds the GPU: preflight says so, before a weight is read."""
    held = torch.empty(int(free_bytes() * 0.995) - (1 << 30), dtype=torch.uint8, device="cuda")
    door = Door(home, **{"kv-cache-memory-bytes": "4 GiB"})
    try:
        state = door.wait("failed", timeout_s=30)
        (finding, *_) = [f for f in state["launch"]["findings"] if f["severity"] == "error"]
        print(json.dumps(finding), file=sys.stderr)
        assert finding["id"] == "memory-too-small"
    finally:
        door.end()
        del held
