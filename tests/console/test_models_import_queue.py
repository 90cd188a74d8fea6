"""The queue of imports, and what of them needs no page."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.bundle.errors import StoppedError
from console.conflicts import Conflict
from console.models import media
from console.models.importing import Importing
from console.models.imports import Imports
from console.models.troubles import Place


def test_a_look_is_bounded(tmp_path, monkeypatch):
    """A disk with millions of files is looked at for so many entries, what lies highest first, and that is said."""
    monkeypatch.setattr(media, "ENTRIES", 50)
    deep = tmp_path / "a"
    deep.mkdir()
    for number in range(100):
        (deep / f"{number}").touch()
    (tmp_path / "b.ingot").touch()
    sight = media.look(tmp_path)
    assert sight.ended_early
    assert [found.name for found in sight.found] == ["b.ingot"]
    assert sight.files <= 52


@pytest.mark.parametrize(
    ("in_container", "read_only", "command"),
    [
        (
            True,
            False,
            "docker compose run --rm --no-deps --user 0 --cap-add CHOWN --entrypoint chown console {uid}:{gid} ",
        ),
        (False, False, "sudo chown {uid}:{gid} {models}"),
        (True, True, "docker compose up -d console"),
        (False, True, "sudo mount -o remount,rw "),
    ],
)
def test_a_models_folder_that_cannot_be_written(home, monkeypatch, in_container, read_only, command):
    """The command is the one for where the console runs and for what stands against it."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    if read_only:
        flags = type("Statistics", (), {"f_flag": os.ST_RDONLY})
        monkeypatch.setattr(os, "statvfs", lambda path: flags)
    trouble = Place(home.models, in_container).trouble()
    assert trouble.command.startswith(command.format(uid=os.geteuid(), gid=os.getegid(), models=home.models))


class Waiting:
    """An order that copies nothing and goes on until it is stopped."""

    verb, source, signed_by, bytes = "import", "STICK/bundle.ingot", "", 1000

    def __init__(self, name: str) -> None:
        self.title, self.models, self.held, self.path = name, (name,), (name,), Path("/nowhere")
        self.go_on = threading.Event()

    def run(self, report, stop) -> None:
        report(500, 1000)
        while not self.go_on.wait(0.01):
            if stop.is_set():
                raise StoppedError("stopped", "it was stopped")
        report(1000, 1000)


async def until(wanted: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not wanted():  # noqa: ASYNC110  a thread changes it
            await asyncio.sleep(0.01)


@pytest.fixture
async def imports(home):
    made = Imports(home, Place(home.models, in_container=False))
    yield made
    await made.close()


async def test_one_at_a_time(imports):
    """The second waits for the first; the same model cannot be asked for twice; both can be called off."""
    first, second, third = Waiting("A"), Waiting("B"), Waiting("C")
    rows = [imports.ask(order, "admin") for order in (first, second, third)]
    await until(lambda: imports.progress and imports.progress.done == 500)
    assert [row.state for row in rows] == ["running", "waiting", "waiting"]
    assert imports.reserved == 2500
    with pytest.raises(Conflict) as caught:
        imports.ask(Waiting("A"), "admin")
    assert caught.value.code == "already-importing"
    imports.cancel(rows[1].id)
    imports.cancel(rows[0].id)
    await until(lambda: rows[2].state == "running")
    assert [row.state for row in rows] == ["cancelled", "cancelled", "running"]
    third.go_on.set()
    await until(lambda: rows[2].state == "done")


async def test_a_dead_stick_holds_up_nobody(imports, monkeypatch):
    """Called off, an import whose thread hangs in a read is given up after a while, and the next has its turn."""
    monkeypatch.setattr("console.models.imports.END_WITHIN_S", 0.3)
    monkeypatch.setattr("console.models.imports.TELL_EVERY_S", 0.05)
    dead, good = Waiting("A"), Waiting("B")
    monkeypatch.setattr(dead, "run", lambda report, stop: dead.go_on.wait(10))
    rows = [imports.ask(dead, "admin"), imports.ask(good, "admin")]
    await until(lambda: imports.running)
    imports.cancel(rows[0].id)
    await until(lambda: rows[1].state == "running")
    assert rows[0].state == "failed"
    assert rows[0].trouble.code == "not-responding"
    good.go_on.set()
    await until(lambda: rows[1].state == "done")
    dead.go_on.set()


async def test_a_console_that_was_killed(home, imports):
    """The next one says what was cut off, and sweeps away what nobody can go on with."""
    imports.ask(Waiting("A"), "admin")
    imports.ask(Waiting("B"), "admin")
    await until(lambda: imports.running)
    left = home.models / ".incoming-A-copy"
    left.mkdir()
    (left / "config.json").write_text("{}")
    after = Imports(home, Place(home.models, in_container=False))
    assert [row.state for row in after.rows] == ["interrupted", "interrupted"]
    assert not left.exists()


async def test_a_console_that_ends(home):
    """An orderly end stops the import, and says so afterwards."""
    imports = Imports(home, Place(home.models, in_container=False))
    imports.ask(Waiting("A"), "admin")
    await until(lambda: imports.running)
    await imports.close()
    assert Imports(home, Place(home.models, in_container=False)).rows[0].state == "interrupted"


@pytest.fixture
def importing(app) -> Importing:
    return app.dependencies["importing"].dependency()


async def test_every_page_sees_how_far_it_is(client, importing, console):
    """Progress is published to every open page, and stands on one that is loaded meanwhile."""
    order = Waiting("A")
    importing.imports.ask(order, "admin")
    await until(lambda: importing.imports.progress and importing.imports.progress.done)
    async for message in console.hub.listen({"imports": ""}):
        if message and "500 bytes" in message.data:
            break
    assert "Importing A" in (await client.get("/models")).text
    row = importing.imports.rows[0]
    await client.post(f"/models/-/imports/{row.id}/cancel")
    await until(lambda: row.state == "cancelled" and importing.imports._task.done())
    assert f"/models/-/imports/{row.id}/forget" in (await client.get("/models")).text
    await client.post(f"/models/-/imports/{row.id}/forget")
    assert f"/models/-/imports/{row.id}/forget" not in (await client.get("/models")).text
