"""A front door whose requests may choose between the tiny model's profiles, each with a folder of its own."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.profile.startable import Written, write_startable
from appliance.protocol import LaunchRecord
from tests.supervisor.scripted import Door, make_profile
from tests.tiny import write_checkpoint

SOON: dict[str, Any] = {"start": True, "min-runtime": 0}


def publish(home: Home, *names: str, active: str = "tiny", others: dict[str, Any] | None = None, **limits: Any) -> None:
    """Profiles that may be started, each of the model folder of its name; `others` are settings of those not active."""
    written = []
    for name in (active, *names):
        if not (home.models / name).exists():
            shutil.copytree(home.models / "tiny", home.models / name)
        settings: dict[str, Any] = {"on-request": {"min-runtime": 0}}
        if name != active:
            settings = {"on-request": {**SOON, **limits}, **(others or {})}
        document = {"schema": 1, "name": name, "model": {"path": name}, **settings}
        written.append(Written(revision="r1", saved=1.0, document=document, active=name == active))
    write_startable(home, written)


@contextlib.contextmanager
def choosing_door(
    home: Home,
    *names: str,
    running: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    **script: Any,
) -> Iterator[Door]:
    """`running` are the on-request settings of the profile that runs first, `settings` any of the others."""
    if not (home.models / "tiny").exists():
        write_checkpoint(home.models / "tiny", max_position_embeddings=8192)
    publish(home, *names, others=settings, **(limits or {}))
    profile = make_profile(home, **{"on-request": {"min-runtime": 0, **(running or {})}})
    script.setdefault("token_s", 0)
    with Door(home, profile=profile.rename(home.root / "first.json"), **script) as door:
        door.wait("ready")
        yield door


def complete(door: Door, model: str, **body: Any) -> httpx.Response:
    return door.http.post(
        "/v1/completions", json={"model": model, "prompt": "hello", "max_tokens": 3, "temperature": 0, **body}
    )


class Asking(threading.Thread):
    """A request that is sent beside others; `answer` waits for what came."""

    def __init__(self, door: Door, model: str, **body: Any) -> None:
        super().__init__(daemon=True)
        self._door, self._model, self._body = door, model, body
        self._answer: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        with contextlib.suppress(httpx.TransportError):
            self._answer = complete(self._door, self._model, **self._body)

    def answer(self) -> httpx.Response:
        self.join(30)
        assert self._answer is not None
        return self._answer


def launches(home: Home) -> list[LaunchRecord]:
    """Oldest first."""
    return Catalogue(home).records()[::-1]


def metric(door: Door, name: str) -> float:
    line = next(line for line in door.http.get("/metrics").text.splitlines() if line.startswith(f"ingot:{name} "))
    return float(line.split()[-1])


def events(lines: list[str]) -> list[Any]:
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
