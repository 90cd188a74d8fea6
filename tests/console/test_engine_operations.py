"""What ends requests asks first, or waits for them to finish."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import time

import pytest
from sqlalchemy import select

from appliance.profile.active import read_active
from appliance.protocol import Finding, LaunchRecord, Severity, State
from console.access.token import ensure_console_token, program_header
from console.authors import COMMAND_LINE, by
from console.db.models import User
from console.engine_control.base import EngineControlError, EngineStatus
from console.engine_control.operations import RequestsRunning, When, is_stopped
from tests.console.draining_door import Door
from tests.tiny import write_checkpoint

JSON = {"Accept": "application/json"}


@pytest.fixture
def door():
    opened = Door()
    yield opened
    opened.close()


@pytest.fixture
def config(config, door):
    return dataclasses.replace(config, engine_port=door.port)


async def called(control, *calls: str) -> None:
    """Returns as soon as these, and no others, have been asked of what runs the engine."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            while not control.calls:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert control.calls == list(calls)


# ---- asking ----------------------------------------------------------------------------------------------------------

ENDING: tuple[tuple[str, dict[str, str]], ...] = (
    ("/engine/stop", {}),
    ("/engine/restart", {}),
    ("/profiles/-/roll-back", {}),
    ("/profiles/chat/activate", {"revision": "1"}),
    ("/profiles/chat/apply-fix", {"revision": "r1", "patch": '{"max-num-seqs": 3}'}),
    ("/profiles/chat/edit", {"do": "activate", "view": "yaml", "base": "1", "yaml": "name: chat\nmodel: {path: T}"}),
    ("/profiles/-/new", {"do": "activate", "view": "yaml", "yaml": "name: other\nmodel: {path: T}"}),
    ("/backups/earlier.db/restore", {}),
)


@pytest.fixture
async def chat(console, home):
    from console.profiles.store import ProfileStore

    write_checkpoint(home.models / "T")
    return await ProfileStore(console.database).create({"name": "chat", "model": {"path": "T"}}, author="a")


@pytest.fixture
def backup(home, chat):
    (home.root / "backups").mkdir()
    shutil.copy(home.database, home.root / "backups" / "earlier.db")


@pytest.mark.parametrize(("path", "data"), ENDING)
@pytest.mark.usefixtures("chat", "backup")
async def test_whatever_ends_requests_asks_where_some_are_running(client, console, control, door, path, data):
    """Nothing is saved, stopped, restored or restarted meanwhile; the page repeats the form with both answers."""
    door.requests = 3
    asked = await client.post(path, data=data)
    assert asked.status_code == 409
    for when in When:
        assert f'name="when" value="{when}"' in asked.text
    for name in data:
        assert f'type="hidden" name="{name}"' in asked.text
    told = await client.post(path, data=data, headers=JSON)
    assert (told.status_code, told.json()["field"]) == (409, "when")
    assert control.calls == []
    assert (await client.get("/profiles/chat/revisions/2")).status_code == 404
    assert (await client.get("/profiles/other")).status_code == 404
    assert [entry.name for entry in (console.home.root / "backups").iterdir()] == ["earlier.db"]


@pytest.mark.parametrize(("path", "call"), [("/engine/stop", "stop"), ("/engine/restart", "restart")])
async def test_nobody_is_asked_where_nothing_runs(client, control, door, path, call):
    answer = await client.post(path, follow_redirects=False)
    assert answer.headers["location"] == "/"
    assert control.calls == [call]
    assert door.drains == [0]


@pytest.mark.parametrize("act", ["start", "stop", "restart"])
async def test_nothing_is_offered_while_it_is_being_done(console, control, door, monkeypatch, act):
    """Between the old process and the new one there is none, and yet nothing to start."""
    go_on, begun = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        control.present = EngineStatus(running=False, ended="exit status 0", exit_code=0)
        begun.set()
        await go_on.wait()
        control.present = EngineStatus(running=True, who="process 2")

    monkeypatch.setattr(control, act, slow)
    pressed = asyncio.create_task(getattr(console.engine, act)())
    await begun.wait()
    door.close()
    assert (await console.follower.look()).actions == []
    go_on.set()
    await pressed
    assert (await console.follower.look()).actions != []


async def test_now_does_not_wait(client, control, door):
    """The front door is told first, with who wants it: what ends its process then finds nothing to wait for."""
    door.requests = 3
    await client.post("/engine/restart", data={"when": "now"}, follow_redirects=False)
    assert control.calls == ["restart"]
    assert door.drains == [0]
    assert "admin" in door.whys[0]


@pytest.mark.parametrize(
    ("path", "data", "names"),
    [
        ("/engine/stop", {}, ["admin"]),
        ("/engine/restart", {}, ["admin"]),
        ("/profiles/chat/activate", {"revision": "1"}, ["admin", "chat r1"]),
    ],
)
async def test_what_ends_requests_says_who_did_it(client, door, chat, path, data, names):
    door.requests = 1
    await client.post(path, data={**data, "when": "now"}, follow_redirects=False)
    assert all(name in door.whys[-1] for name in names)


@pytest.mark.parametrize("path", ["/engine/stop", "/engine/restart", "/profiles/chat/activate", "/engine/finish-now"])
async def test_what_a_command_ends_is_not_credited_to_a_person(visitor, home, door, chat, path):
    door.requests = 1
    ensure_console_token(home)
    headers = {**JSON, **program_header(home)}
    await visitor.post(path, data={"when": "now"}, headers=headers, follow_redirects=False)
    assert by(COMMAND_LINE) in door.whys[-1]
    assert f"by {COMMAND_LINE}" not in door.whys[-1]


async def test_a_name_with_braces_is_only_a_name(client, door, chat, console):
    async with console.database.session() as session:
        (await session.scalars(select(User))).one().name = "a{b}"
        await session.commit()
    door.requests = 1
    sent = {"revision": "1", "when": "now"}
    assert (await client.post("/profiles/chat/activate", data=sent, follow_redirects=False)).status_code == 303
    assert "a{b}" in door.whys[-1]


async def test_who_wanted_it_is_still_known_after_the_wait(client, console, control, door):
    door.requests = 3
    await client.post("/engine/stop", data={"when": "when-finished"}, follow_redirects=False)
    door.finish()
    await called(control, "stop")
    assert len(set(door.whys)) == 1
    assert "admin" in door.whys[0]
    control.present = EngineStatus(running=False, who="process 1", ended="exit status 0", exit_code=0)
    door.close()
    view = await console.follower.look()
    assert (view.state, view.stopped_because) == (State.STOPPED, door.whys[0])
    assert view.stopped_because in view.sentence
    assert "exit code" not in view.sentence


async def test_while_it_drains_the_strip_names_what_runs(client, console, door, home):
    """The other profile is active already, but it starts later."""
    from console.profiles.store import ProfileStore

    write_checkpoint(home.models / "T")
    new = await ProfileStore(console.database).create({"name": "chat", "model": {"path": "T"}}, author="a")
    door.requests = 2
    door.launch = LaunchRecord(
        id="20261120-100000-aaaa", profile="old", revision="r4", started=1.0, state=State.DRAINING
    )
    await client.post("/profiles/chat/activate", data={"when": "when-finished"})
    view = await console.follower.look()
    assert view.active == (new.profile, new.label)
    assert view.revision == ("old", "r4")
    assert "chat r1" in view.after_drain
    strip = (await client.get("/log")).text
    assert 'class="strip-profile" href="/profiles/old"' in strip


async def test_an_answer_that_is_none_is_refused(client, control, door):
    answer = await client.post("/engine/stop", data={"when": "someday"})
    assert answer.status_code in (400, 422)
    assert control.calls == []


# ---- waiting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["stop", "restart"])
async def test_when_finished_drains_and_then_does_it(console, control, door, then):
    """The engine is left alone until its last request has finished."""
    door.requests = 3
    assert await getattr(console.engine, then)(When.FINISHED) == 3
    assert console.engine.drain is not None
    assert (console.engine.drain.then, control.calls) == (then, [])
    door.requests = 1
    await door.asked_again(3)
    assert control.calls == []
    door.finish()
    await called(control, then)
    await asyncio.sleep(0)
    assert console.engine.drain is None


async def test_the_strip_says_what_is_waited_for_and_offers_now(client, console, control, door):
    door.requests = 3
    await client.post("/engine/stop", data={"when": "when-finished"}, follow_redirects=False)
    view = await console.follower.look()
    assert (view.state, view.requests) == (State.DRAINING, 3)
    assert [(action.id, action.label) for action in view.actions] == [("finish-now", "Stop now")]
    text = (await client.get("/log")).text
    assert 'data-then="stop"' in text
    assert f'data-until="{door.until:.0f}"' in text
    await client.post("/engine/finish-now", follow_redirects=False)
    assert control.calls == ["stop"]
    assert console.engine.drain is None


async def test_a_later_wish_takes_the_place_of_the_one_that_waits(console, control, door):
    door.requests = 3
    await console.engine.stop(When.FINISHED)
    await console.engine.restart(When.FINISHED)
    assert console.engine.drain is not None
    door.finish()
    await called(control, "restart")
    assert not is_stopped(console.home)


async def test_a_front_door_that_cannot_drain_changes_nothing(console, control, door):
    door.requests, door.refuses = 3, 404
    with pytest.raises(EngineControlError) as refused:
        await console.engine.stop(When.FINISHED)
    assert refused.value.finding.id == "drain-refused"
    assert control.calls == []
    assert not is_stopped(console.home)


async def test_an_engine_that_goes_meanwhile_is_not_waited_for(console, control, door):
    door.requests = 3
    await console.engine.restart(When.FINISHED)
    door.close()
    await called(control, "restart")


@pytest.fixture
def impatient(monkeypatch):
    """A front door that stays silent is given up on at once."""
    monkeypatch.setattr("console.engine_control.front_door.ANSWERS_WITHIN_S", 0.05)


@pytest.mark.parametrize("fault", ["silent", "garbled"])
@pytest.mark.usefixtures("impatient")
async def test_a_front_door_that_does_not_say_may_have_requests(client, console, control, door, fault):
    """Whoever stops the engine is asked, as if there were some."""
    setattr(door, fault, True)
    with pytest.raises(RequestsRunning) as running:
        await console.engine.choose("", "Restart")
    assert running.value.requests is None
    asked = await client.post("/engine/stop")
    assert asked.status_code == 409
    assert 'name="when" value="now"' in asked.text
    assert control.calls == []
    assert not (await console.follower.look()).reachable


@pytest.mark.parametrize("fault", ["silent", "garbled"])
@pytest.mark.usefixtures("impatient")
async def test_a_front_door_that_is_slow_once_keeps_its_requests(console, control, door, fault):
    door.requests = 3
    await console.engine.restart(When.FINISHED)
    setattr(door, fault, True)
    await door.asked_again(2)
    assert control.calls == []
    setattr(door, fault, False)
    door.finish()
    await called(control, "restart")


@pytest.mark.usefixtures("impatient")
async def test_a_drain_that_was_not_heard_is_asked_for_again(console, control, door):
    door.requests, door.silent = 3, True
    assert await console.engine.stop(When.FINISHED) is None
    assert control.calls == []
    door.silent = False
    async with asyncio.timeout(20):
        while not door.drains:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert door.drains[0] > 60
    assert control.calls == []
    door.finish()
    await called(control, "stop")


@pytest.mark.usefixtures("impatient")
async def test_a_silent_front_door_is_not_waited_for_beyond_the_drain(console, control, door, monkeypatch):
    monkeypatch.setattr("console.engine_control.operations.OVERDUE_S", 0.0)
    monkeypatch.setattr(console.engine, "_drain_within_s", 0.3)
    door.silent = True
    await console.engine.stop(When.FINISHED)
    await called(control, "stop")


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_console_that_starts_goes_on_with_the_drain(console, control, door, stopped):
    """The one before it was killed: what it had been told to do is done all the same."""
    door.state, door.requests, door.until = State.DRAINING, 2, time.time() + 60
    if stopped:
        console.home.engine_stopped.touch()
    await console.engine.resume()
    assert control.calls == []
    door.finish()
    await called(control, "stop" if stopped else "restart")


async def test_a_fix_that_waits_is_saved_and_starts_later(client, console, control, door, chat, home):
    """The page that follows is the new launch's; the revision is active at once."""
    from tests.tiny import write_checkpoint

    write_checkpoint(home.models / "T")
    door.requests = 2

    async def passed(**_):
        from console.profiles.preflight import Verdict

        return Verdict(findings=[])

    client.app.dependencies["activator"].dependency()._preflight.ask = passed
    answer = await client.post("/profiles/chat/activate", data={"when": "when-finished"}, headers=JSON)
    assert answer.json()["waits_for"] == 2
    assert control.calls == []
    active = read_active(home)
    assert active is not None
    assert active.launch == answer.json()["launch"]
    door.finish()
    await called(control, "restart")
    again = read_active(home)
    assert again is not None
    assert again.launch == answer.json()["launch"]


@pytest.fixture
def docker_fails(control):
    """Nothing can be done with the container until the test says otherwise."""
    broken = [True]
    remembered = {name: getattr(control, name) for name in ("start", "stop", "restart")}

    def failing(name):
        async def act():
            if broken:
                raise EngineControlError(
                    Finding(id="docker-unreachable", severity=Severity.ERROR, message="No Docker.")
                )
            await remembered[name]()

        return act

    for name in remembered:
        setattr(control, name, failing(name))
    return broken


async def undone(console):
    """Returns as soon as what the drain was for has failed."""
    async with asyncio.timeout(20):
        while console.engine.undone is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("then", ["stop", "restart"])
async def test_what_fails_after_a_drain_is_shown(client, console, control, door, docker_fails, then):
    """On the dashboard, until it is done after all."""
    door.requests = 3
    await getattr(console.engine, then)(When.FINISHED)
    door.finish()
    await undone(console)
    view = await console.follower.look()
    assert view.drain is None
    assert view.problem is not None
    assert view.problem.id == "undone-after-drain"
    assert [action.id for action in view.actions] == ["start"]
    assert "No Docker." in (await client.get("/")).text
    docker_fails.clear()
    await console.engine.start()
    assert (await console.follower.look()).problem is None


@pytest.mark.parametrize(("then", "after"), [("restart", "launches"), ("stop", "goes")])
async def test_what_somebody_else_did_after_all_is_no_longer_undone(console, control, door, docker_fails, then, after):
    door.requests = 3
    await getattr(console.engine, then)(When.FINISHED)
    door.finish()
    await undone(console)
    if after == "launches":
        door.state = State.STARTING
    else:
        door.close()
        control.present = EngineStatus(running=False, ended="exit status 0")
    await console.follower.look()
    assert console.engine.undone is None
