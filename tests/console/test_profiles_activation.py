"""Activation: preflight decides, one at a time, and row, file and engine never disagree."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from appliance.front_door_token import front_door_token
from appliance.home_lock import OwnerLock
from appliance.profile.active import read_active
from appliance.protocol import ApplianceState, Finding, LaunchRecord, Severity, State
from console.db.models import Launch
from console.db.schema import migrate
from console.db.sessions import Database
from console.engine_control.base import EngineControlError
from console.live.hub import Hub
from console.live.view import EngineView
from console.profiles.activator import Activator
from console.profiles.automatic_roll_back import AutomaticRollBack
from console.profiles.errors import EngineUnreachable, NotFound, NotWritten, Refused, UnderWay
from console.profiles.history import History
from console.profiles.inspection import Inspector
from console.profiles.preflight import Preflight, Verdict
from console.profiles.store import ProfileStore
from tests.tiny import write_checkpoint

MISSING = {"name": "missing", "model": {"path": "Gone-7B"}}


class Control:
    """Keeps what it was asked; `problem` makes it refuse."""

    kind = "process"

    def __init__(self):
        self.calls = []
        self.problem = None

    async def restart(self, when="now", *, why=""):
        if self.problem:
            raise EngineControlError(self.problem)
        self.calls.append("restart")
        return 0


class FrontDoor:
    """A real HTTP server that answers `POST /appliance/attempts` as told, and keeps what it was sent."""

    def __init__(self, status, body):
        outer = self
        self.asked: list[tuple[str, dict, str | None]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                sent = self.rfile.read(int(self.headers["content-length"]))
                outer.asked.append((self.path, json.loads(sent), self.headers.get("authorization")))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            def log_message(self, *args):
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
async def database(home):
    home.create()
    migrate(home.database, home.root / "backups")
    write_checkpoint(home.models / "Tiny")
    database = Database(home.database)
    yield database
    await database.close()


@pytest.fixture
def store(database):
    return ProfileStore(database)


@pytest.fixture
def control():
    return Control()


@pytest.fixture
def front_door():
    servers = []

    def start(status, body):
        servers.append(FrontDoor(status, body))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def activator(home, database, control, url=None, preflight=None):
    return Activator(
        home, database, preflight or Preflight(home, Inspector(home, {}), (lambda: url) if url else None), control
    )


def chat(**settings):
    return {"name": "chat", "model": {"path": "Tiny"}, **settings}


async def test_a_good_revision_becomes_active_and_the_engine_restarts(home, database, store, control):
    await store.create(chat(**{"max-num-seqs": 4}), author="ann")
    activated = await activator(home, database, control).activate("chat")
    assert (activated.what, activated.restarted, control.calls) == ("chat r1", True, ["restart"])
    written = read_active(home)
    assert (written.launch, written.revision) == (activated.launch, "r1")
    assert written.document["max-num-seqs"] == 4
    assert (await store.active()).what == "chat r1"


async def test_what_preflight_refuses_leaves_everything_as_it_was(home, database, store, control):
    await store.create(chat(), author="ann")
    await store.create(MISSING, author="ann")
    it = activator(home, database, control)
    await it.activate("chat")
    before = home.active_profile.read_bytes()
    with pytest.raises(Refused, match="Gone-7B") as refused:
        await it.activate("missing")
    assert [finding.id for finding in refused.value.findings] == ["model-missing"]
    assert home.active_profile.read_bytes() == before
    assert (await store.active()).what == "chat r1"
    assert control.calls == ["restart"]


async def test_what_cannot_pass_is_not_overridden(home, database, store, control):
    """The launch would be refused again; one that is for later may find the model there."""
    await store.create(MISSING, author="ann")
    with pytest.raises(Refused) as refused:
        await activator(home, database, control).activate("missing", anyway=True)
    assert not refused.value.transient
    assert (read_active(home), control.calls) == (None, [])
    activated = await activator(home, database, None).activate("missing", anyway=True)
    assert [finding.id for finding in activated.findings] == ["model-missing"]
    assert read_active(home).document["model"]["path"] == "Gone-7B"


@pytest.mark.parametrize(("transient", "tried"), [([True, True], True), ([True, False], False)])
async def test_what_may_pass_can_be_overridden(home, database, store, control, front_door, transient, tried):
    """If all of it may; and the check that is overridden is not kept as an attempt beside the launch."""
    await store.create(chat(), author="ann")
    home.console_token.write_text("secret\n")
    findings = [{"id": "x", "severity": "error", "message": "No.", "transient": each} for each in transient]
    door = front_door(200, {"findings": findings})
    it = activator(home, database, control, door.url)
    with pytest.raises(Refused) as refused:
        await it.activate("chat")
    assert refused.value.transient is tried
    with pytest.raises(Refused) if not tried else contextlib.nullcontext():
        await it.activate("chat", anyway=True)
    assert [body["record"] for _, body, _ in door.asked] == [True, False]
    assert control.calls == ["restart"] * tried


async def test_the_running_front_door_is_asked_with_the_console_token(home, database, store, control, front_door):
    await store.create(chat(), author="ann")
    home.console_token.write_text("secret\n")
    door = front_door(200, {"findings": []})
    activated = await activator(home, database, control, door.url).activate("chat", 1)
    [(path, body, authorization)] = door.asked
    assert (path, authorization) == ("/appliance/attempts", f"Bearer {front_door_token(home)}")
    document = (await store.revision("chat")).to_run()
    assert body == {"launch": activated.launch, "revision": "r1", "profile": document, "record": True}


async def test_an_attempt_that_the_front_door_recorded_keeps_its_id(home, database, store, control, front_door):
    """A refused attempt is a launch folder of its own: activating again takes another id."""
    await store.create(chat(), author="ann")
    finding = {"id": "memory", "severity": "error", "message": "It does not fit."}
    record = {"id": "attempt-1", "profile": "chat", "started": 1.0, "findings": [finding]}
    door = front_door(422, record)
    it = activator(home, database, control, door.url)
    with pytest.raises(Refused, match="It does not fit") as refused:
        await it.activate("chat")
    assert refused.value.launch == "attempt-1"
    with pytest.raises(Refused):
        await it.activate("chat")
    assert len({body["launch"] for _, body, _ in door.asked}) == 2


@pytest.mark.parametrize(
    ("status", "body"), [(401, {"error": {"message": "no"}}), (500, b"oops"), (200, b"<html>"), (422, {"detail": "?"})]
)
async def test_an_answer_that_is_no_verdict_stops_the_activation(
    home, database, store, control, front_door, status, body
):
    """Nothing but a verdict is taken for consent, although an engine of this folder runs."""
    await store.create(chat(), author="ann")
    lock = OwnerLock(home.lock)
    with pytest.raises(EngineUnreachable):
        await activator(home, database, control, front_door(status, body).url).activate("chat")
    assert (await store.active(), control.calls) == (None, [])
    lock.release()


async def test_another_program_on_the_engines_port_is_told(home, database, store, control, front_door):
    """No engine of this folder runs, and somebody answers all the same."""
    await store.create(chat(), author="ann")
    with pytest.raises(Refused) as refused:
        await activator(home, database, control, front_door(404, b"<h1>Not Found</h1>").url).activate("chat")
    (finding,) = [finding for finding in refused.value.findings if finding.severity == "error"]
    assert (finding.id, finding.field) == ("port-in-use", "port")
    assert f"process {os.getpid()}" in finding.message
    assert (await store.active(), control.calls) == (None, [])


async def test_where_no_front_door_answers_the_checks_run_here(home, database, store, control):
    await store.create(MISSING, author="ann")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(Refused):
        await activator(home, database, control, url).activate("missing")


async def test_two_activations_at_once_are_one(home, database, store, control):
    """The second is told which is under way; when the first has ended, the next may begin."""
    await store.create(chat(), author="ann")
    await store.create({**chat(), "name": "other"}, author="ann")
    gate = asyncio.Event()

    class Slow:
        async def ask(self, **_):
            await gate.wait()
            return Verdict(findings=[])

    it = activator(home, database, control, preflight=Slow())
    first = asyncio.create_task(it.activate("chat", 1))
    await asyncio.sleep(0)
    with pytest.raises(UnderWay) as caught:
        await it.activate("other")
    assert (caught.value.code, caught.value.value) == ("activation-running", "chat r1")
    with pytest.raises(NotFound):
        await it.roll_back()
    gate.set()
    assert (await first).what == "chat r1"
    assert (await it.activate("other")).what == "other r1"


async def test_an_engine_that_does_not_restart_is_said_and_the_revision_stays(home, database, store, control):
    await store.create(chat(), author="ann")
    text = "The container ingot-engine is not there."
    control.problem = Finding(id="gone", severity=Severity.ERROR, message=text)
    with pytest.raises(EngineUnreachable, match=r"chat r1.*ingot-engine"):
        await activator(home, database, control).activate("chat")
    assert read_active(home).revision == "r1"


async def test_a_database_that_cannot_be_written_changes_no_file(home, database, store, control):
    """The row is written first, so the file of the last activation stays what the engine reads."""
    await store.create(chat(), author="ann")
    await store.create({**chat(), "name": "other"}, author="ann")
    await activator(home, database, control).activate("chat")
    before = home.active_profile.read_bytes()
    read_only = Database(home.database)
    event.listen(
        read_only._engine.sync_engine, "connect", lambda connection, _: connection.execute("PRAGMA query_only=1")
    )
    with pytest.raises(DBAPIError, match="readonly"):
        await activator(home, read_only, control).activate("other")
    await read_only.close()
    assert home.active_profile.read_bytes() == before
    assert (await store.active()).what == "chat r1"
    assert control.calls == ["restart"]


async def test_a_file_that_cannot_be_written_changes_no_row(home, database, store, control, monkeypatch):
    await store.create(chat(), author="ann")
    await store.create({**chat(), "name": "other"}, author="ann")
    it = activator(home, database, control)
    await it.activate("chat")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("console.profiles.activator.write_active", full)
    with pytest.raises(NotWritten, match=r"No space left on device.*other r1"):
        await it.activate("other")
    assert (await store.active()).what == "chat r1"
    assert read_active(home).document["name"] == "chat"


async def test_a_folder_in_the_place_of_the_file_is_put_aside(home, database, store, control):
    """An activation is what the finding of an unreadable active profile tells a person to do: it must work."""
    await store.create(chat(), author="ann")
    (home.active_profile / "notes").mkdir(parents=True)
    await activator(home, database, control).activate("chat")
    assert read_active(home).document["name"] == "chat"
    (aside,) = home.active.glob("profile.yaml.aside-*")
    assert (aside / "notes").is_dir()


async def test_a_commit_that_fails_puts_the_file_back(home, database, store, control):
    """Row and file change together or not at all, even when the disk fills between the two."""
    await store.create(chat(), author="ann")
    await store.create({**chat(), "name": "other"}, author="ann")
    await activator(home, database, control).activate("chat")
    before = home.active_profile.read_bytes()
    broken = Database(home.database)

    def fail(connection):
        raise DBAPIError("COMMIT", None, Exception("database or disk is full"))

    event.listen(broken._engine.sync_engine, "commit", fail)
    with pytest.raises(DBAPIError):
        await activator(home, broken, control).activate("other")
    await broken.close()
    assert home.active_profile.read_bytes() == before


async def test_rolling_back_activates_the_last_revision_that_was_ready(home, database, store, control):
    made = await store.create(chat(), author="ann")
    await store.save("chat", chat(**{"max-num-seqs": 2}), base=1, author="ann")
    async with database.session() as session:
        session.add(
            Launch(
                launch_id="one", profile="chat", revision="r1", state="stopped", started=made.created + 1,
                ready_after_s=1.0, path="",
            )
        )  # fmt: skip
    it = activator(home, database, control)
    await it.activate("chat", 2)
    assert (await it.roll_back()).what == "chat r1"
    with pytest.raises(NotFound):
        await it.roll_back()


async def test_a_revision_saved_under_an_old_name_runs_under_the_new_one(home, database, store, control):
    await store.create(chat(), author="ann")
    await store.rename("chat", "talk", author="ann")
    await activator(home, database, control).activate("talk", 1)
    assert read_active(home).document["name"] == "talk"


def failed(profile, revision, launch):
    record = LaunchRecord(id=launch, profile=profile, revision=revision, started=1.0, state=State.FAILED)
    return EngineView(
        state=State.FAILED, appliance=ApplianceState(state=State.FAILED, since=1.0, version="", launch=record)
    )


async def test_a_failed_launch_is_rolled_back_where_the_profile_says_so(home, database, store, control):
    """Once for a launch, and not again when the revision that it went back to fails too."""
    first = await store.create(chat(), author="ann")
    await store.save("chat", chat(**{"max-num-seqs": 2, "on-failure": "roll-back"}), base=1, author="ann")
    await store.save("chat", chat(**{"max-num-seqs": 3, "on-failure": "roll-back"}), base=2, author="ann")
    async with database.session() as session:
        for number in (1, 2):
            launch = Launch(launch_id=f"good-{number}", profile="chat", revision=f"r{number}", state="stopped",
                            started=first.created + number, ready_after_s=1.0, path="")  # fmt: skip
            session.add(launch)
    it = activator(home, database, control)
    automatic = AutomaticRollBack(home, store, it)
    await it.activate("chat", 3)

    judging = asyncio.create_task(automatic.run())

    async def told(view):
        automatic(view, Hub())
        await automatic.settled()

    await told(failed("chat", "r2", "older"))  # not the active revision's
    assert (await store.active()).label == "r3"
    for _ in range(3):
        await told(failed("chat", "r3", "bad"))
    assert (await store.active()).label == "r2"
    await told(failed("chat", "r2", read_active(home).launch))
    assert (await store.active()).label == "r2"
    assert control.calls == ["restart", "restart"]
    judging.cancel()


async def test_a_failed_launch_stays_where_the_profile_says_stop(home, database, store, control):
    await store.create(chat(), author="ann")
    it = activator(home, database, control)
    await it.activate("chat")
    automatic = AutomaticRollBack(home, store, it)
    judging = asyncio.create_task(automatic.run())
    automatic(failed("chat", "r1", "bad"), Hub())
    await automatic.settled()
    assert control.calls == ["restart"]
    judging.cancel()


async def test_the_last_good_revision_is_found_without_reading_every_launch(store, database):
    """The active revision's thousand launches are passed over by the database, and the answer ends the reading."""
    first = await store.create(chat(), author="ann")
    second = await store.save("chat", chat(**{"max-num-seqs": 2}), base=1, author="ann")
    async with database.session() as session:
        for number in range(1000):
            launch = Launch(launch_id=f"{number}", profile="chat", revision="r1" if number < 500 else "r2", path="",
                            started=first.created + number, state="stopped", ready_after_s=1.0)  # fmt: skip
            session.add(launch)
    read = []
    event.listen(Launch, "load", lambda launch, context: read.append(launch.launch_id))
    async with database.session() as session:
        good = await (await History.read(session)).last_good(session, other_than=second.revision.id)
    assert (good.id, read[0]) == (first.id, "499")
    assert len(read) <= 50


async def test_a_roll_back_holds_nothing_up_and_a_fault_in_it_is_logged(home, store, monkeypatch, caplog):
    """Pages follow the engine while it is stopped and started; nobody waits for the task's exception."""
    automatic = AutomaticRollBack(home, store, activator=None)

    async def fault():
        raise KeyError("unforeseen")

    monkeypatch.setattr(store, "active", fault)
    judging = asyncio.create_task(automatic.run())
    automatic(failed("chat", "r1", "bad"), Hub())
    await automatic.settled()
    assert not judging.done()
    judging.cancel()
    assert "Launch bad failed and could not be rolled back" in caplog.text
    assert "KeyError" in caplog.text
