"""The numbers of launches: one after the other, however often a launch is indexed again, and never given twice."""

from __future__ import annotations

import shutil
import time
from zipfile import ZipFile

import msgspec
import pytest
from click.testing import CliRunner
from sqlalchemy import select

from appliance.launches.catalogue import Catalogue
from appliance.protocol import LaunchRecord, State
from console.db.launch_index import LaunchIndex
from console.db.models import Launch
from console.launches.launches_command import launches
from console.logs.logs_command import logs


@pytest.fixture
def record(home):
    def write(launch_id: str, state: State) -> None:
        folder = home.launch(launch_id)
        folder.mkdir(parents=True, exist_ok=True)
        launch = LaunchRecord(id=launch_id, profile="p", revision="r1", started=time.time(), state=state)
        (folder / "launch.json").write_bytes(msgspec.json.encode(launch) + b" " * len(state))

    return write


async def numbers(console) -> dict[str, int]:
    async with console.database.session() as session:
        return {row.launch_id: row.number for row in await session.scalars(select(Launch))}


async def test_numbers_have_no_gaps_and_are_never_given_again(console, home, record):
    index = LaunchIndex(console.database, Catalogue(home))
    for launch_id in ("20261120-100000-aaaa", "20261120-100001-aaaa"):
        for state in (State.PREFLIGHT, State.STARTING, State.READY, State.STOPPED):
            record(launch_id, state)
            assert await index.refresh()
    assert list((await numbers(console)).values()) == [1, 2]

    shutil.rmtree(home.launch("20261120-100001-aaaa"))
    async with console.database.session() as session:
        await session.delete(await session.get(Launch, 2))
    record("20261120-100002-aaaa", State.READY)
    await index.refresh()
    assert await numbers(console) == {"20261120-100000-aaaa": 1, "20261120-100002-aaaa": 3}


async def test_a_damaged_record_keeps_no_other_launch_out(console, home, record):
    """It has no row until it can be read; the others are indexed, and nothing is written again that did not change."""
    catalogue = Catalogue(home)
    index = LaunchIndex(console.database, catalogue)
    damaged, whole = "20261120-100000-aaaa", "20261120-100001-aaaa"
    record(damaged, State.READY)
    (home.launch(damaged) / "launch.json").write_text('{"id": "2026')
    record(whole, State.READY)
    assert await index.refresh()
    assert list(await numbers(console)) == [whole]
    assert not await index.refresh()
    record(damaged, State.STOPPED)
    assert await index.refresh()
    assert set(await numbers(console)) == {damaged, whole}
    assert not await index.refresh()


async def test_the_terminal_takes_the_numbers_that_the_console_shows(console, home, record, tmp_path):
    environment = {"INGOT_HOME": str(home.root)}
    first, second = "20261120-100000-aaaa", "20261120-100001-aaaa"
    for launch_id in (first, second):
        record(launch_id, State.READY)
        (home.launch(launch_id) / "engine.log").write_text(f"{launch_id}\n")
    await LaunchIndex(console.database, Catalogue(home)).refresh()
    for given, printed in (("1", first), ("2", second), (first, first)):
        result = CliRunner().invoke(logs, ["--launch", given], env=environment)
        assert (result.exit_code, result.output) == (0, f"{printed}\n")
    for unknown in ("3", "9" * 30, "\N{ARABIC-INDIC DIGIT ONE}"):
        assert CliRunner().invoke(logs, ["--launch", unknown], env=environment).exit_code == 1
    out = tmp_path / "first.zip"
    assert CliRunner().invoke(launches, ["export", "1", "--out", str(out)], env=environment).exit_code == 0
    with ZipFile(out) as exported:
        assert any(exported.read(name) == f"{first}\n".encode() for name in exported.namelist())


def test_a_number_without_a_database_is_an_unknown_launch(tmp_path):
    """Asking for one makes no database."""
    result = CliRunner().invoke(logs, ["--launch", "1"], env={"INGOT_HOME": str(tmp_path)})
    assert result.exit_code == 1
    assert not (tmp_path / "ingot.db").exists()
