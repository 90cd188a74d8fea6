"""The dashboard and the strip, in every state of the engine, from what a front door says."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import time

import msgspec
import pytest

from appliance.front_door_token import front_door_token
from appliance.launches.catalogue import Catalogue
from appliance.profile.active import ActiveProfile, write_active
from appliance.protocol import (
    ApplianceState,
    Diagnosis,
    EvidenceLine,
    Finding,
    Fix,
    LaunchRecord,
    Load,
    PhaseRecord,
    Progress,
    Severity,
    State,
)
from console.dashboard.examples import examples, next_model
from console.db.models import ActiveRevision, Profile, Revision
from console.engine_control.base import EngineStatus, OutputLine
from console.launches.follow_up import write_follow_up
from console.live.view import EngineView
from console.profiles.store import ProfileStore
from console.settings import ConsoleConfig
from tests.console.front_door import FrontDoor
from tests.console.launch_folders import failed_launch, ready_launch
from tests.console.launch_kinds import refused
from tests.console.listening import message_with


@pytest.fixture
def door(home):
    opened = FrontDoor(ApplianceState(state=State.IDLE, since=time.time(), version="0")).start()
    yield opened
    opened.stop()


@pytest.fixture
def config(config, door) -> ConsoleConfig:
    return dataclasses.replace(config, engine_port=door.port)


def _launch(state: State, **changes) -> LaunchRecord:
    now = time.time()
    return LaunchRecord(
        id="20261120-100000-aaaa", profile="small", revision="r2", started=now - 9, state=state, **changes
    )


async def _activate(console, number: int = 1) -> None:
    async with console.database.session() as session:
        profile = Profile(name="small")
        session.add(profile)
        await session.flush()
        for saved in range(1, number + 1):
            document = {"name": "small"}
            created = time.time() - 100
            revision = Revision(
                profile_id=profile.id, number=saved, document=document, content_hash="", created=created
            )
            session.add(revision)
        await session.flush()
        session.add(ActiveRevision(revision_id=revision.id))


async def test_ready(client, console, door):
    """What runs, since when, at what rate, and how to call it with the name and address that it has."""
    await _activate(console, 2)
    launch = _launch(State.READY, ready_after_s=2.4)
    load = Load(running=6, waiting=2, output_tokens_per_s=1912.4, cache_usage=0.37)
    door.state = ApplianceState(
        state=State.READY,
        since=time.time() - 8040,
        version="0",
        launch=launch,
        load=load,
        requests=8,
        models=["my-model"],
    )
    await console.follower.look()
    text = (await client.get("/")).text
    for part in ("small r2 is ready", "1,912", "37 %", '"model": "my-model"', f"http://127.0.0.1:{door.port}/v1"):
        assert part.replace('"', "&#34;") in text or part in text
    assert "/engine/restart" in text
    assert 'data-requests="8"' in text
    assert re.search(r'data-ends-requests="[^"]*small r2"', text)
    assert list(console.follower.history)[-1][1:] == (1912.4, 6, 2, 0.37)
    assert (await client.get("/dashboard/load", headers={"Accept": "application/json"})).json()[-1][2] == 6


@pytest.mark.parametrize("state", [State.READY, State.STOPPED, State.STARTING])
async def test_the_examples_say_when_the_api_cannot_answer(client, console, door, state):
    door.state = ApplianceState(state=state, since=1.0, version="0")
    await console.follower.look()
    text = (await client.get("/")).text
    shown = re.search(r'<div id="call-state"[^>]*>(.*?)</div>', text, re.DOTALL)
    assert shown is not None
    assert ("callout" in shown[1]) is (state is not State.READY)


@pytest.mark.parametrize(("running", "unit"), [(0, "requests"), (1, "request"), (1234, "requests")])
async def test_figures_agree_with_their_units(client, console, door, running, unit):
    door.state = ApplianceState(state=State.READY, since=1.0, version="0", load=Load(running=running))
    await console.follower.look()
    text = (await client.get("/")).text
    shown = re.search(r'<span data-load="2">([\d,]+)</span> <small[^>]*>(\w+)</small>', text)
    assert shown is not None
    assert shown.groups() == (f"{running:,}", unit)


async def test_starting_shows_the_phases_as_they_go(client, console, door):
    """Each phase with its time, the running one with how far it is; the button is Stop."""
    now = time.time()
    phases = [
        PhaseRecord(phase="preflight", started=now - 3, seconds=0.03, outcome="done"),
        PhaseRecord(phase="weights", started=now - 2, progress=Progress(done=2**30, total=4 * 2**30, unit="bytes")),
    ]
    launch = _launch(State.STARTING, phases=phases)
    door.state = ApplianceState(state=State.STARTING, since=now - 3, version="0", launch=launch)
    await console.follower.look()
    text = (await client.get("/")).text
    assert "Starting small r2" in text
    assert "1.0 GiB of 4.0 GiB" in text
    assert "preflight" in text
    assert "/engine/stop" in text


@pytest.mark.parametrize(
    ("document", "models", "name"),
    [
        ({"name": "next", "served-model-name": "waits"}, ["served"], "served"),
        ({"name": "next", "served-model-name": "waits"}, [], "waits"),
        ({"name": "next"}, [], "next"),
        (None, [], "MODEL"),
    ],
)
def test_examples_name_what_is_served_or_will_be(home, document, models, name):
    """By its name in the API, which need not be the profile's."""
    if document is not None:
        write_active(home, ActiveProfile(launch=None, revision="r1", document=document))
    appliance = ApplianceState(state=State.DRAINING, since=1.0, version="0", models=models)
    view = EngineView(state=State.DRAINING, reachable=True, appliance=appliance, active=("next", "r1"))
    assert all(f'"{name}"' in example.text for example in examples(view, next_model(home), keyed=False))


async def test_failed_shows_cause_evidence_and_fix(client, console, door):
    """The diagnosis with its lines linked to the log, the fix as a change to apply, and the way back."""
    good = _launch(State.STOPPED, ready_after_s=2.0)
    good.id, good.revision = "20261120-090000-aaaa", "r1"
    folder = console.home.launch(good.id)
    folder.mkdir(parents=True)
    (folder / "launch.json").write_bytes(msgspec.json.encode(good))
    await _activate(console, 2)
    diagnosis = Diagnosis(
        summary="The kernel crashes <here>.",
        evidence=(EvidenceLine(2210, "CUDA error"),),
        fix=Fix(text="Let it be chosen.", patch={"backends.moe": "auto"}),
    )
    launch = _launch(State.FAILED, ended=time.time(), diagnosis=diagnosis)
    door.state = ApplianceState(state=State.FAILED, since=time.time(), version="0", launch=launch)
    await console.follower.look()
    text = (await client.get("/")).text
    assert "small r2 failed" in text
    assert "The kernel crashes &lt;here&gt;." in text
    assert "/log?launch=20261120-100000-aaaa&line=2210" in text.replace("&amp;", "&")
    assert "/profiles/small/apply-fix" in text
    assert 'value="{&#34;backends.moe&#34;: &#34;auto&#34;}"' in text
    assert "/profiles/-/roll-back" in text


async def test_a_refused_attempt_beside_a_running_engine(client, console, door):
    """The old engine serves on; what was refused, and why, stands below it."""
    finding = Finding(
        id="x", severity=Severity.ERROR, message="The tokenizer is missing.", field="model.path", value="Q"
    )
    attempt = _launch(State.FAILED, findings=[finding])
    attempt.profile, attempt.revision = "other", "r9"
    door.state = ApplianceState(
        state=State.READY, since=time.time(), version="0", launch=_launch(State.READY), attempt=attempt
    )
    await console.follower.look()
    text = (await client.get("/")).text
    assert "small r2 is ready" in text
    assert f'data-attempt="{attempt.id}"' in text
    assert "The tokenizer is missing." in text


async def test_an_attempt_with_several_errors_is_told_in_short(client, console, door, home):
    """What they say, one fix for those that a change can mend, and the way to each; what a patch replaces is shown."""
    refused(home, "20261120-110000-bbbb", attempt=True)
    attempt = Catalogue(home).find("20261120-110000-bbbb").record()
    door.state = ApplianceState(
        state=State.READY, since=time.time(), version="0", launch=_launch(State.READY), attempt=attempt
    )
    await console.follower.look()
    text = (await client.get("/")).text
    assert text.count("<li>") >= 3
    assert text.count("/apply-fix") == 1
    assert text.count('data-ends-requests="Apply all and restart"') == 1
    assert re.search(r"<del>.*131072</del><ins>.*40960</ins>", text)
    assert 'href="/launches/20261120-110000-bbbb">' in text


async def test_a_refused_attempt_can_be_dismissed(client, console, door, home):
    """Its card goes for good, from open pages too; its own page stays."""
    refused(home, "20261120-110000-bbbb", attempt=True)
    attempt = Catalogue(home).find("20261120-110000-bbbb").record()
    door.state = ApplianceState(
        state=State.READY, since=time.time(), version="0", launch=_launch(State.READY), attempt=attempt
    )
    await console.follower.look()
    card = f'data-attempt="{attempt.id}"'
    messages = console.hub.listen({"now": ""})
    await message_with(messages, card)
    done = await client.post(f"/dashboard/attempts/{attempt.id}/dismiss", follow_redirects=False)
    assert done.headers["location"] == "/"
    assert card not in (await client.get("/")).text
    await console.follower.look()
    await message_with(messages, without=[card])
    await messages.aclose()
    assert (await client.get(f"/launches/{attempt.id}")).status_code == 200


async def test_only_a_refused_attempt_can_be_dismissed(client, home):
    failed_launch(home, "20261120-090000-aaaa")
    for launch in ("20261120-090000-aaaa", "20261120-110000-bbbb", ".."):
        assert (await client.post(f"/dashboard/attempts/{launch}/dismiss")).status_code == 404


async def test_a_roll_back_by_itself_says_that_it_is_one(client, console, door, home):
    """What runs now is not what was asked for: the dashboard says so as long as it runs."""
    failed_launch(home, "20261120-090000-aaaa")
    write_follow_up(
        home,
        "20261120-090000-aaaa",
        "automatic-roll-back",
        launch="20261120-100000-aaaa",
        profile="small",
        revision="r2",
    )
    door.state = ApplianceState(state=State.READY, since=time.time(), version="0", launch=_launch(State.READY))
    await console.follower.look()
    text = (await client.get("/")).text
    assert 'class="callout callout-warn"' in text
    assert 'href="/launches/20261120-090000-aaaa"' in text


async def test_every_state_has_its_page(client, console, door):
    """No state leaves the dashboard without a word, a mark and a button."""
    for state in State:
        door.state = ApplianceState(state=state, since=time.time(), version="0", launch=_launch(state))
        await console.follower.look()
        text = (await client.get("/")).text
        assert f'data-state="{state}"' in text
        for action in console.follower.view.actions:
            assert f'data-action="{action.id}"' in text


async def test_engine_that_ended_without_a_word(client, console, control, door):
    """Where the front door never answered, the end of its process and its last lines are shown."""
    door.token = "something else"
    control.present = EngineStatus(running=False, ended="exit status 3", exit_code=3)
    control.output = [OutputLine(1795168305.0, "a line that the engine wrote")]
    following = asyncio.create_task(console.follower.run())
    async with asyncio.timeout(30):
        while not console.follower.view.output:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    text = (await client.get("/")).text
    following.cancel()
    assert "exit status 3" in text
    assert "a line that the engine wrote" in text


def test_a_process_that_was_killed_is_started_again():
    """Its end says nothing against the revision; one that failed with the front door up is rolled back."""
    gone = EngineView(state=State.FAILED, roll_back_to=("chat", "r1"))
    assert [action.id for action in gone.actions] == ["start-again", "roll-back"]
    present = msgspec.structs.replace(gone, reachable=True)
    assert [action.id for action in present.actions] == ["roll-back", "start-again", "stop"]


async def test_the_console_shows_its_token(console, door):
    """The front door's state needs it, where there are API keys."""
    console.home.console_token.write_text("secret\n")
    door.token = front_door_token(console.home)
    console.home.console_token.unlink()
    assert (await console.follower.look()).reachable is False
    console.home.console_token.write_text("secret\n")
    assert (await console.follower.look()).reachable is True


async def test_parts_are_published_once_for_all_pages(console, door, monkeypatch):
    """What did not change is not sent again, though times go on."""
    seen: list[str] = []
    original = console.hub.send

    def send(topic: str, data: str) -> None:
        seen.append(topic)
        original(topic, data)

    monkeypatch.setattr(console.hub, "send", send)
    now = time.time()
    door.state = ApplianceState(state=State.STOPPED, since=now - 50, version="0")
    for later in range(3):
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        await console.follower.look()
    assert {"now", "recent", "strip"} <= set(seen)
    assert len(seen) == len(set(seen))


async def test_an_engine_that_somebody_else_runs(client, console, control):
    """No button that cannot work; the page says how to start the engine."""
    control.kind = "none"
    await console.follower.look()
    text = (await client.get("/")).text
    assert "/engine/" not in text
    control.kind = "none"
    assert console.follower.view.actions == []


@pytest.mark.parametrize("state", [State.PREFLIGHT, State.STARTING])
async def test_a_launch_has_one_clock_until_it_is_ready(console, door, state):
    """The strip's timer does not begin anew when preflight ends."""
    launch = _launch(state)
    door.state = ApplianceState(state=state, since=time.time(), version="0", launch=launch)
    assert (await console.follower.look()).since == launch.started


async def test_a_refused_launch_has_one_word_everywhere(client, console, door, home):
    """In the dashboard's list as on the launches page."""
    refused(home, "20261120-110000-bbbb")
    await console.follower.look()
    (row,) = console.follower.view.recent
    assert row.state == "refused"
    for page in ("/", "/launches"):
        assert "<b>refused</b>" in (await client.get(page)).text


@pytest.mark.parametrize(("there", "word"), [(True, "ready"), (False, "cut off")])
async def test_a_launch_whose_engine_is_gone_is_ready_nowhere(client, console, control, door, home, there, word):
    """It wrote no end: dashboard, profiles, revision and log tell the same."""
    await ProfileStore(console.database).create({"name": "small", "model": {"path": "T"}}, author="a")
    ready_launch(home, "20261120-100000-aaaa", profile="small", revision="r1", started=time.time())
    control.present = EngineStatus(running=there)
    door.stop()
    await console.follower.look()
    for path in ("/", "/profiles", "/profiles/small", "/log?launch=20261120-100000-aaaa"):
        assert f'data-outcome="{word}"' in (await client.get(path)).text, path


async def test_a_launch_that_was_cut_off_is_so_everywhere(client, console, control, door, home):
    """The next front door closed it as failed, with the reason."""
    await ProfileStore(console.database).create({"name": "small", "model": {"path": "T"}}, author="a")
    launch = ready_launch(home, "20261120-100000-aaaa", profile="small", revision="r1", started=time.time())
    path = launch.folder / "launch.json"
    record = {**json.loads(path.read_bytes()), "state": "failed", "cut_off": True, "ended": time.time()}
    path.write_text(json.dumps(record))
    control.present = EngineStatus(running=False)
    door.stop()
    await console.follower.look()
    for page in ("/", "/profiles", "/profiles/small"):
        assert 'data-outcome="cut off"' in (await client.get(page)).text, page
