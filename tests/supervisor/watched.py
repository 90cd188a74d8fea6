"""What tests look at while a supervisor runs, and after."""

from __future__ import annotations

import asyncio

import msgspec

from appliance.engine_client.client import Generation
from appliance.home import Home
from appliance.protocol import Event, LaunchRecord, State
from appliance.supervisor.supervisor import Supervisor
from tests.supervisor.scripted import is_alive


async def wait_for(supervisor: Supervisor, *states: State, timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while supervisor.state not in states:  # noqa: ASYNC110  a person looks at it in this way
            await asyncio.sleep(0.005)


async def gone(*pids: int, within_s: float = 10) -> None:
    """A process that was killed takes a moment to vanish."""
    async with asyncio.timeout(within_s):
        while any(map(is_alive, pids)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def read_to_end(generation: Generation) -> None:
    while True:
        await generation.read()


def record_of(home: Home) -> LaunchRecord:
    (folder,) = home.launches.iterdir()
    return msgspec.json.decode((folder / "launch.json").read_bytes(), type=LaunchRecord)


def events_of(home: Home) -> list[Event]:
    (folder,) = home.launches.iterdir()
    return [msgspec.json.decode(line, type=Event) for line in (folder / "events.jsonl").read_bytes().splitlines()]


def log_of(home: Home) -> str:
    (folder,) = home.launches.iterdir()
    return (folder / "engine.log").read_text()
