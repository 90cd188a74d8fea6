"""A front door over the scripted core, which answers "the quick brown fox ..." to everything; and its model alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from appliance.home import Home
from appliance.plan.launch import NativePlan
from appliance.serving.served_model import ServedModel
from appliance.supervisor.preflight import run_preflight
from tests.supervisor.scripted import Door, make_profile


@pytest.fixture(scope="module")
def door_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.at(tmp_path_factory.mktemp("door") / "home").create()


@pytest.fixture(scope="module")
def door(door_home: Home) -> Iterator[Door]:
    with Door(door_home) as door:
        door.wait("ready")
        yield door


@pytest.fixture
async def model(home: Home) -> ServedModel:
    document = json.loads(make_profile(home).read_bytes())
    plan = (await asyncio.to_thread(run_preflight, home, document)).plan
    assert isinstance(plan, NativePlan)
    return ServedModel.load(plan, 0)
