"""A front door over the scripted core, which answers "the quick brown fox ..." to everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.home import Home
from tests.supervisor.scripted import Door


@pytest.fixture(scope="module")
def door_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.at(tmp_path_factory.mktemp("door") / "home").create()


@pytest.fixture(scope="module")
def door(door_home: Home) -> Iterator[Door]:
    with Door(door_home) as door:
        door.wait("ready")
        yield door
