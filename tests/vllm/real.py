"""A real vLLM behind `ingot serve`, for tests and benchmarks: INGOT_VLLM names its command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.running import INGOT, environment, fetch, free_port

VLLM = os.environ.get("INGOT_VLLM", "")
NAME = "real"
# A cold start on two busy processors.
START_S = 420.0
PROFILE: dict[str, Any] = {
    "schema": 1,
    "name": NAME,
    "engine": "vllm",
    "device": "cpu",
    "model": {"path": "bundled"},
    "max-model-len": 512,
    "kv-cache-memory-bytes": "1 GiB",
}


@dataclass
class Engine:
    process: subprocess.Popen[bytes]
    url: str
    home: Path
    model: str = NAME

    def state(self) -> dict[str, Any]:
        status, answer = fetch(f"{self.url}/appliance/state")
        return answer if status == 200 else {}

    def wait(self, *states: str, timeout_s: float = START_S) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        state: dict[str, Any] = {}
        while time.monotonic() < deadline:
            state = self.state()
            if state.get("state") in states:
                return state
            time.sleep(0.1)
        raise TimeoutError(f"not {' or '.join(states)} within {timeout_s:g} s: {state}\n{self.log()[-3000:]}")

    def log(self) -> str:
        logs = sorted((self.home / "launches").glob("*/engine.log"))
        return logs[-1].read_text(errors="replace") if logs else ""

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


@contextlib.contextmanager
def front_door(folder: Path, profile: dict[str, Any], vllm: str = VLLM, **variables: str) -> Iterator[Engine]:
    """`ingot serve` with this profile, on a state folder of its own below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    home, file, port = folder / "home", folder / "profile.yaml", free_port()
    file.write_text(yaml.safe_dump(profile))
    variables = {"INGOT_VLLM": vllm, "INGOT_MODELS": str(folder / "models"), **variables}
    with (folder / "serve.log").open("wb") as output:
        process = subprocess.Popen(
            [*INGOT, "serve", "--port", str(port), "--profile", str(file)],
            env=environment(home) | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    engine = Engine(process, f"http://127.0.0.1:{port}", home, profile.get("name", NAME))
    try:
        yield engine
    finally:
        engine.stop()


@contextlib.contextmanager
def serving(folder: Path, profile: dict[str, Any] = PROFILE) -> Iterator[Engine]:
    """One that is ready."""
    with front_door(folder, profile) as engine:
        state = engine.wait("ready", "failed", "hung")
        assert state["state"] == "ready", f"{state}\n{engine.log()[-3000:]}"
        yield engine


def family(pid: int) -> list[psutil.Process]:
    """All that a process has started."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def socket_of(pid: int) -> Path:
    """The one that the vLLM below this front door listens on, from its command."""
    for process in family(pid):
        for argument in process.cmdline():
            if argument.startswith("--uds="):
                return Path(argument.removeprefix("--uds="))
    raise LookupError("no vLLM runs")
