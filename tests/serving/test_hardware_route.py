"""`GET /appliance/hardware`: the engine's machine, for the console alone."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from appliance.front_door_token import digest
from appliance.hardware.engine_machine import Machine, place
from appliance.home import Home
from tests.serving.test_access import bearer
from tests.supervisor.scripted import Door


@pytest.fixture
def token(door_home: Home) -> Iterator[str]:
    door_home.front_door_digest.write_text(digest("console-secret"))
    yield "console-secret"
    door_home.front_door_digest.unlink()


def test_only_the_console_is_told(door: Door, token: str) -> None:
    """The environment of an engine is nobody else's business."""
    assert door.http.get("/appliance/hardware").status_code == 401
    assert door.http.get("/appliance/hardware", headers=bearer("another")).status_code == 401


def test_the_machine_is_told_with_what_the_running_launch_will_free(door: Door, token: str) -> None:
    """Previews are judged by the machine as it is when that has ended; nothing is freed where nothing runs."""
    answer = door.http.get("/appliance/hardware", headers=bearer(token))
    assert answer.status_code == 200
    machine = msgspec.json.decode(answer.content, type=Machine)
    assert machine.place == place()
    assert machine.inventory.host.cores >= 1
    present, later = machine.inventory.host, machine.for_next.host
    assert later.memory_available_bytes > present.memory_available_bytes
    assert (later.memory_bytes, later.shm_bytes) == (present.memory_bytes, present.shm_bytes)
