"""Runs the supervisor, or a whole front door, with the scripted core in the place of the engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

from appliance.engine_client.core import NativeCore
from appliance.home import Home
from appliance.supervisor.supervisor import Supervisor
from tests.supervisor.scripted_core import TEXT
from tests.tiny import write_checkpoint

CORE = Path(__file__).with_name("scripted_core.py")


def make_profile(home: Home, **settings: Any) -> Path:
    """A profile that names a tiny checkpoint, as a file."""
    folder = home.models / "tiny"
    if not folder.exists():
        write_checkpoint(folder)
    path = home.root / "profile.json"
    path.write_text(json.dumps({"schema": 1, "name": "tiny", "model": {"path": "tiny"}, **settings}))
    return path


def core_command(home: Home, **script: Any) -> tuple[str, ...]:
    make_profile(home)
    tokenizer = Tokenizer.from_file(str(home.models / "tiny" / "tokenizer.json"))
    script.setdefault("ids", tokenizer.encode(TEXT.decode()).ids)
    if "answers" in script:
        script["answers"] = [tokenizer.encode(answer).ids for answer in script["answers"]]
    return (sys.executable, str(CORE), json.dumps(script))


async def prepare(_plan: object) -> None:
    """Nothing to load: there is no front door."""


def make_supervisor(
    home: Home, profile: dict[str, Any] | None = None, *, core: NativeCore | None = None, **script: Any
) -> Supervisor:
    command = core_command(home, **script)
    file = make_profile(home, **(profile or {}))
    return Supervisor(home, prepare=prepare, profile_file=file, core=core, core_command=command)


class Door:
    """A front door as a process of its own; `url` is its address."""

    def __init__(self, home: Home, *, profile: Path | None = None, allowed_origins: str = "", **script: Any) -> None:
        arguments = {"home": str(home.root), "core": core_command(home, **script)}
        arguments["profile"] = str(profile or make_profile(home))
        arguments["allowed_origins"] = allowed_origins
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.supervisor.door", json.dumps(arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    def state(self) -> dict[str, Any]:
        return dict(self.http.get("/appliance/state").json())

    def wait(self, *states: str, timeout_s: float = 30) -> dict[str, Any]:
        """The appliance's state as soon as it is one of these."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = self.state()
            if found["state"] in states:
                return found
            time.sleep(0.04)  # to ask costs a starting engine time
        raise AssertionError(f"still {found['state']} ({found['launch']}), not {states}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
