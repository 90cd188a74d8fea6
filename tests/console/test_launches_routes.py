"""The launch pages, from real folders, through the whole console."""

from __future__ import annotations

import asyncio
import errno
import html
import re
import shutil

import pytest
from sqlalchemy import select

from appliance.launches.catalogue import Catalogue
from appliance.protocol import (
    ErrorLogged,
    EvidenceLine,
    Finding,
    FindingReport,
    Fix,
    ProcessEnd,
    Progress,
    Severity,
    State,
)
from console.app import create_app
from console.db.launch_index import LaunchIndex
from console.db.models import Launch
from console.engine_control.base import EngineStatus
from console.launches.routes import FILES
from console.launches.service import Launches
from tests.console.launch_folders import PHASES, WrittenLaunch, failed_launch, ready_launch
from tests.console.listening import message_with

GOOD, BAD, NOW = "20261120-100000-aaaa", "20261120-110000-bbbb", "20261120-120000-cccc"
REFUSAL = Finding(
    id="tokenizer-missing",
    severity=Severity.ERROR,
    message="The tokenizer is missing: put tokenizer.json into Qwen3-8B.",
    field="model.path",
    value="Qwen3-8B",
    fix=Fix(text="Use the other model.", patch={"model.path": "Qwen3-8B-b"}),
)


def refused_launch(home, launch_id, **kwargs):
    launch = WrittenLaunch(home, launch_id, **kwargs)
    launch.tell(FindingReport(REFUSAL))
    launch.record.findings = [REFUSAL]
    launch.phase("preflight", 0.03, "failed")
    launch.change(State.FAILED, "Preflight found 1 error.")
    return launch


@pytest.fixture
def engine_runs(control):
    control.present = EngineStatus(running=True, who="process 1")


async def test_the_list(client, home, console):
    """Number, outcome, phase, cause, profile and time of each, the newest first."""
    ready_launch(home, GOOD)
    failed_launch(home, BAD)
    await console.follower.look()
    text = (await client.get("/launches")).text
    assert text.index(f"/launches/{BAD}") < text.index(f"/launches/{GOOD}")
    assert "in graphs" in text
    assert "The MoE kernel chosen by hand crashes" in text
    assert '">2</a>' in text
    assert "4.0 s" in text


async def test_a_launch_that_the_database_missed_is_there(client, home):
    """The folder is the truth: without a row a launch is called by its id."""
    failed_launch(home, BAD)
    assert f'">{BAD}</a>' in (await client.get("/launches")).text
    assert (await client.get(f"/launches/{BAD}")).status_code == 200


async def test_filters_and_pages(client, home):
    """By outcome and profile; 25 to a page; a page that does not exist is the last one."""
    for number in range(60):
        make = refused_launch if number % 3 == 0 else ready_launch
        make(home, f"20261120-10{number:02}00-aaaa", profile=f"p{number % 2}")
    first = (await client.get("/launches")).text
    assert first.count('class="row-link"') == 25
    assert "Page 1 of 3, 60 launches" in first
    last = (await client.get("/launches", params={"number": 99})).text
    assert last.count('class="row-link"') == 10
    refused = (await client.get("/launches", params={"outcome": "refused", "profile": "p0"})).text
    assert refused.count('class="row-link"') == 10
    assert refused.count("The tokenizer is missing") == 10
    nothing = (await client.get("/launches", params={"outcome": "refused", "profile": "nobody"})).text
    assert 'class="row-link"' not in nothing
    assert 'class="empty"' in nothing


async def test_no_launch_yet(client):
    """The empty page says what will be here and how to begin."""
    assert 'class="empty"' in (await client.get("/launches")).text


async def test_a_failed_launch(client, home):
    """What happened, the phases, the cause with its line in the log, the fix, and who failed alike."""
    ready_launch(home, GOOD)
    failed_launch(home, BAD)
    failed_launch(home, NOW)
    text = (await client.get(f"/launches/{NOW}")).text
    assert "Failed" in text
    assert "in “graphs”" in text
    assert f"/log?launch={NOW}&amp;line=3" in text
    assert 'action="/profiles/qwen3-8b/apply-fix"' in text
    shown = re.sub("<[^>]*>", " ", text)
    assert re.search(r"backends.moe\s+was\s+flashinfer\s+becomes\s+auto", shown)
    assert "last good 4.0 s" in text
    assert "1 earlier launch failed like this" in text
    assert f"/launches/{BAD}" in text


async def test_a_refused_attempt(client, home):
    """It says that nothing was started, what preflight found, and the fix."""
    ready_launch(home, GOOD)
    refused_launch(home, BAD, attempt=True)
    text = (await client.get(f"/launches/{BAD}")).text
    assert "The tokenizer is missing" in text
    assert "Qwen3-8B-b" in text


async def test_a_launch_cut_off(client, home):
    """A launch whose front door was killed does not seem to run for ever."""
    launch = WrittenLaunch(home, BAD)
    launch.phase(*PHASES[0])
    launch.change(State.STARTING)
    launch.phase("weights", 1.0, None)
    text = (await client.get(f"/launches/{BAD}")).text
    assert "Cut off" in text
    assert "cut off" in (await client.get("/launches")).text


async def test_hostile_content_is_text(client, home):
    """Names, reasons and findings come from files that anybody may have written."""
    launch = WrittenLaunch(home, BAD, profile="<script>alert(1)</script>", revision='"><img src=x>')
    launch.change(State.FAILED, "</p><script>alert(2)</script>")
    for url in ("/launches", f"/launches/{BAD}", f"/log?launch={BAD}"):
        text = (await client.get(url)).text
        assert "<script>alert" not in text
        assert "<img src=x>" not in text


@pytest.mark.parametrize("damage", ["launch.json", "events.jsonl", "profile.yaml", "all"])
async def test_damaged_folders_have_pages(client, home, damage):
    """Half-written or damaged files are named on the page and never break it or the list."""
    launch = failed_launch(home, BAD)
    for path in list(launch.folder.iterdir()):
        if damage in (path.name, "all"):
            path.write_bytes(b"\xff\x00{\n")
    answer = await client.get(f"/launches/{BAD}")
    assert answer.status_code == 200
    if damage != "profile.yaml":
        assert "could not be read" in answer.text or "is damaged" in answer.text
    assert (await client.get("/launches")).status_code == 200


async def test_files_can_be_taken_home(client, home):
    """The log, the events and the profile, byte for byte, and nothing else from the folder."""
    launch = failed_launch(home, BAD)
    for name, file in (("log", "engine.log"), ("events", "events.jsonl"), ("profile", "profile.yaml")):
        answer = await client.get(f"/launches/{BAD}/{name}")
        assert answer.content == (launch.folder / file).read_bytes()
        assert "attachment" in answer.headers["content-disposition"]
    for name in ("diagnosis.json", "engine.log", "..%2f..%2fingot.db"):
        assert (await client.get(f"/launches/{BAD}/{name}")).status_code == 404
    assert (await client.get("/launches/20260101-000000-0000/log")).status_code == 404


@pytest.mark.parametrize("file", ["profile.yaml", "engine.log", "zzz", "x" * 1000])
async def test_a_file_that_launches_do_not_have_is_not_found(client, home, file):
    """The answer names those that they have."""
    failed_launch(home, BAD)
    answer = await client.get(f"/launches/{BAD}/{file}", headers={"Accept": "application/json"})
    assert answer.status_code == 404
    assert all(name in answer.json()["remedy"] for name in FILES)


async def test_deleting(client, home, console):
    """Folder and row go together; the page names what is destroyed."""
    ready_launch(home, GOOD)
    failed_launch(home, BAD)
    await console.follower.look()
    text = html.unescape((await client.get(f"/launches/{BAD}")).text)
    assert "launch 2" in re.findall(r'data-confirm="([^"]*)"', text)[0]
    answer = await client.post(f"/launches/{BAD}/delete")
    assert answer.status_code == 200
    assert not home.launch(BAD).exists()
    assert not list(home.root.glob(".deleted*"))
    async with console.database.session() as session:
        assert [row.launch_id for row in await session.scalars(select(Launch))] == [GOOD]
    assert (await client.post(f"/launches/{BAD}/delete")).status_code == 404


async def test_a_folder_that_resists_deletion_is_swept_at_the_next_start(client, config, control, home, monkeypatch):
    """The launch is gone from the pages all the same; a kill halfway leaves the same behind."""
    failed_launch(home, BAD)

    def full(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", full)
        answer = await client.post(f"/launches/{BAD}/delete")
    assert answer.status_code == 200
    assert not home.launch(BAD).exists()
    (left,) = home.root.glob(".deleted*")
    assert str(left) in html.unescape(answer.text)
    async with create_app(config, control).lifespan(), asyncio.timeout(20):
        while left.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_server_goes_on_while_a_launch_is_looked_at_to_be_deleted(client, home, monkeypatch):
    """Its details are read from many files, by a thread."""
    failed_launch(home, BAD)
    loops = []
    read = Launches.details

    def details(*given):
        loops.append(asyncio._get_running_loop())
        return read(*given)

    monkeypatch.setattr(Launches, "details", details)
    assert (await client.post(f"/launches/{BAD}/delete")).status_code == 200
    assert loops == [None]


async def test_a_folder_of_launches_that_cannot_be_read_is_said(client, home):
    """Every page goes on; the list says what is in the way."""
    shutil.rmtree(home.launches, ignore_errors=True)
    home.launches.write_text("a file")
    for page in ("/", "/launches", "/log", "/profiles", "/hardware"):
        assert (await client.get(page)).status_code == 200, page
    assert f"{home.launches}, cannot be read: Not a directory." in (await client.get("/launches")).text


async def test_a_launch_that_cannot_be_read_keeps_no_other_from_being_indexed(home, console):
    failed_launch(home, BAD)
    (home.launches / GOOD / "launch.json").mkdir(parents=True)
    index = LaunchIndex(console.database, Catalogue(home))
    assert await index.refresh()
    async with console.database.session() as session:
        assert [row.launch_id for row in await session.scalars(select(Launch))] == [BAD]


async def test_the_running_launch_is_not_deleted(client, home, console, engine_runs):
    """Neither its folder nor its row, and the page does not offer it."""
    ready_launch(home, NOW)
    await console.follower.look()
    assert "/delete" not in (await client.get(f"/launches/{NOW}")).text
    answer = await client.post(f"/launches/{NOW}/delete")
    assert answer.status_code == 409
    assert 'data-conflict="launch-current"' in answer.text
    assert home.launch(NOW).exists()


async def test_the_page_follows_a_launch(home, console, engine_runs):
    """The feed sends the part anew as the launch goes on, with its share, and ends with it."""
    launch = WrittenLaunch(home, NOW)
    launch.phase(*PHASES[0])
    launch.change(State.STARTING)
    launch.phase("weights", 1.0, None, Progress(done=3 << 30, total=15 << 30, unit="bytes"))
    await console.follower.look()
    messages = console.hub.listen({f"launch:{NOW}": ""})
    await message_with(messages, "3.0 GiB of 15.0 GiB")
    launch.diagnose()
    launch.change(State.FAILED, "It crashed.")
    await message_with(messages, "The MoE kernel")
    await messages.aclose()


async def test_the_first_error_is_on_the_page_within_two_seconds(home, console, engine_runs):
    """While it starts; once it serves, it has survived it."""
    launch = WrittenLaunch(home, NOW)
    launch.phase(*PHASES[0])
    launch.change(State.STARTING)
    await console.follower.look()
    messages = console.hub.listen({f"launch:{NOW}": ""})
    await message_with(messages, without=["data-first-error"])
    launch.tell(ErrorLogged(EvidenceLine(7, "Cannot open the tuned configuration")))
    await message_with(messages, 'data-first-error="7"', within_s=2)
    launch.change(State.READY)
    await message_with(messages, without=["data-first-error"])
    await messages.aclose()


async def test_the_process_that_failed_first_is_marked_and_the_others_are_aftermath(client, home, console):
    launch = failed_launch(home, BAD)
    launch.process_ended(ProcessEnd(pid=12, name="Worker_TP1", time=launch.time, status=-9))
    launch.process_ended(ProcessEnd(pid=11, name="APIServer", time=launch.time + 1, status=1))
    launch.process_ended(ProcessEnd(pid=13, name="Worker_TP0", time=launch.time + 1, status=-9, aftermath=True))
    launch.process_ended(
        ProcessEnd(pid=14, name="tail", time=launch.time + 2, status=-15, aftermath=True, by_ingot=True)
    )
    launch.save()
    await console.follower.look()
    text = (await client.get(f"/launches/{BAD}")).text
    table = text[text.index('id="processes-title"') :]
    rows = re.findall(r"<tr([^>]*)><td.*?<td>(\w+)</td>", table)
    assert [name for _, name in rows] == ["Worker_TP1", "APIServer", "Worker_TP0", "tail"]
    assert ["data-first" in marks for marks, _ in rows] == [True, False, False, False]
    assert ["data-aftermath" in marks for marks, _ in rows] == [False, False, True, True]
    assert ["data-by-ingot" in marks for marks, _ in rows] == [False, False, False, True]
