"""What can be done with the engine is said for every state; stopping is remembered, starting is asked for."""

from __future__ import annotations

import dataclasses
import re
import time

import pytest

from appliance.engines import NATIVE, VLLM
from appliance.launches.phases import phases_before_ready
from appliance.profile.active import ActiveProfile, read_active, write_active
from appliance.protocol import ApplianceState, Finding, LaunchRecord, PhaseRecord, Severity, State
from console.engine_control.actions import ACTIONS, OFFERED
from console.engine_control.base import EngineStatus, OutputLine
from console.engine_control.operations import Drain, RequestsRunning, is_stopped, request_launch
from console.live.view import EngineView
from tests.console.draining_door import Door


@pytest.fixture
def door():
    opened = Door()
    yield opened
    opened.close()


@pytest.fixture
def config(config, door):
    return dataclasses.replace(config, engine_port=door.port)


# ---- every state -----------------------------------------------------------------------------------------------------

ROLL_BACK = ("chat", "r1")
PAUSED = EngineStatus(
    running=False, problem=Finding(id="container-paused", severity=Severity.ERROR, message="It is paused.")
)
EXPECTED: tuple[tuple[EngineView, list[str]], ...] = (
    (EngineView(state=State.IDLE), ["start"]),
    (EngineView(state=State.PREFLIGHT, reachable=True), ["stop", "restart"]),
    (EngineView(state=State.STARTING, reachable=True), ["stop", "restart"]),
    (EngineView(state=State.READY, reachable=True), ["restart", "stop"]),
    (EngineView(state=State.DRAINING, reachable=True), []),
    (EngineView(state=State.DRAINING, reachable=True, drain=Drain(then="stop", since=1, until=2)), ["finish-now"]),
    (EngineView(state=State.STOPPED, reachable=True), ["start"]),
    (EngineView(state=State.STOPPED), ["start"]),
    (EngineView(state=State.FAILED, reachable=True), ["start-again", "stop"]),
    (EngineView(state=State.HUNG, reachable=True), ["start-again", "stop"]),
    (EngineView(state=State.FAILED, reachable=True, roll_back_to=ROLL_BACK), ["roll-back", "start-again", "stop"]),
    (EngineView(state=State.HUNG, reachable=True, roll_back_to=ROLL_BACK), ["roll-back", "start-again", "stop"]),
    (EngineView(state=State.FAILED), ["start-again"]),
    (EngineView(state=State.FAILED, roll_back_to=ROLL_BACK), ["start-again", "roll-back"]),
    (EngineView(state=State.FAILED, control=PAUSED), ["restart"]),
    (EngineView(state=State.FAILED, unknown=PAUSED.problem), []),
    (EngineView(state=State.READY, reachable=True, controlled=False), []),
)


@pytest.mark.parametrize(("view", "ids"), EXPECTED)
def test_each_state_offers_what_makes_sense(view, ids):
    """The first is the main button; a target is named, never a bare “Roll back”."""
    assert [action.id for action in view.actions] == ids
    for action in view.actions:
        assert "{" not in action.label
        assert action.id != "roll-back" or action.label.endswith("chat r1")


def test_every_state_has_its_row():
    assert set(OFFERED) == set(State)
    assert {name for row in OFFERED.values() for name in row} == set(ACTIONS)


@pytest.mark.parametrize("engine", [NATIVE, VLLM])
def test_the_arc_is_full_when_the_last_phase_ends_and_not_before(engine):
    records = [PhaseRecord(phase=phase, started=1, outcome="done") for phase in phases_before_ready(engine)]
    launch = LaunchRecord(id="x", profile="chat", engine=engine.name, started=1, phases=records)
    view = EngineView(appliance=ApplianceState(state=State.STARTING, since=1, version="0", launch=launch))
    assert view.share == 1
    launch.phases = records[:-1]
    assert view.share == pytest.approx(1 - 1 / len(records))


# ---- stopped on purpose, started by a person -------------------------------------------------------------------------


async def test_stopped_on_purpose_is_remembered_until_somebody_starts_it(console, control):
    await console.engine.stop()
    assert is_stopped(console.home)
    await console.engine.start()
    assert not is_stopped(console.home)


@pytest.mark.parametrize("kind", ["process", "docker"])
@pytest.mark.parametrize("stopped", [True, False])
async def test_a_console_that_starts_leaves_a_stopped_engine_stopped(console, control, kind, stopped):
    from console.up_command import _start_early

    control.kind = kind
    write_active(console.home, ActiveProfile(launch=None, revision="r1", document={"name": "chat"}))
    if stopped:
        console.home.engine_stopped.touch()
    nothing_left_to_start = await _start_early(dataclasses.replace(console.config, engine_port=1), control)
    assert nothing_left_to_start == (stopped or kind == "process")
    assert control.calls == (["start"] if kind == "process" and not stopped else [])


@pytest.mark.parametrize(("started_after_s", "stays"), [(60, False), (-60, True)])
async def test_a_launch_after_the_stop_says_that_the_engine_is_wanted(console, door, started_after_s, stays):
    """`docker compose up` starts what the page stopped; the launch that is being stopped says nothing."""
    await console.engine.stop()
    stopped = console.home.engine_stopped.stat().st_mtime
    door.launch = LaunchRecord(id="20261120-100000-aaaa", profile="chat", started=stopped + started_after_s)
    door.state = State.STARTING
    await console.follower.look()
    assert is_stopped(console.home) == stays


@pytest.mark.parametrize("state", [State.STOPPED, State.FAILED, State.HUNG])
async def test_start_ends_a_front_door_that_only_says_how_its_launch_ended(console, control, door, state):
    door.state = state
    await console.engine.start()
    assert control.calls == ["restart"]


async def test_each_start_by_a_person_is_a_launch_that_was_asked_for(console, control):
    """Otherwise the guard against crash loops would refuse what somebody wants to try once more."""
    home = console.home
    write_active(home, ActiveProfile(launch="20261120-100000-aaaa", revision="r1", document={"name": "chat"}))
    request_launch(home)
    kept = read_active(home)
    assert kept is not None
    assert kept.launch == "20261120-100000-aaaa"
    home.launch("20261120-100000-aaaa").mkdir(parents=True)
    await console.engine.restart()
    fresh = read_active(home)
    assert fresh is not None
    assert fresh.launch not in (None, "20261120-100000-aaaa")
    assert (fresh.revision, fresh.document) == ("r1", {"name": "chat"})


async def test_the_question_names_what_would_be_ended(client, console, door):
    """In the strip's button, which the page's script asks with, and on the page for browsers without it."""
    door.requests = 1
    door.launch = LaunchRecord(id="20261120-100000-aaaa", profile="chat", revision="r4", started=1.0, state=State.READY)
    view = await console.follower.look()
    assert all("chat r4" in view.asked(ACTIONS[name]) for name in ("restart", "stop"))
    assert re.search(r'data-ends-requests="[^"]*chat r4', (await client.get("/log")).text)
    page = (await client.post("/engine/restart")).text
    assert "chat r4" in re.search(r"<h2[^>]*data-end-title>([^<]*)<", page)[1]


async def test_who_asks_is_told_how_many(console, door):
    door.requests = 5
    with pytest.raises(RequestsRunning) as running:
        await console.engine.choose("", "Restart")
    assert running.value.requests == 5


async def test_output_of_an_engine_that_somebody_stopped_is_no_news(client, console, control, door):
    """Its last lines are shown only while it starts, or after it failed."""
    control.output = [OutputLine(time.time(), "listening")]
    control.present = EngineStatus(running=False, who="process 1", ended="exit status 0", exit_code=0)
    door.close()
    console.follower._output.extend(control.output)
    assert (await console.follower.look()).state is State.STOPPED
    assert "data-own-output" not in (await client.get("/log")).text
    control.present = EngineStatus(running=False, who="process 1", ended="exit status 3", exit_code=3)
    assert (await console.follower.look()).state is State.FAILED
    assert "data-own-output" in (await client.get("/log")).text
