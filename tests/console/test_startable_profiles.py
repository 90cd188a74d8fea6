"""What the front door is told of the profiles that requests may start, and how pages show such launches."""

from __future__ import annotations

import pytest

from appliance.profile.startable import read_startable
from appliance.protocol import ApplianceState, LaunchRecord, State
from console.db.models import ActiveRevision
from console.db.schema import migrate
from console.db.sessions import Database
from console.engine_lines import news
from console.live.view import EngineView
from console.profiles.errors import NotWritten
from console.profiles.form import Draft, groups
from console.profiles.startable import restore_startable
from console.profiles.store import ProfileStore
from tests.console.launch_folders import failed_launch, ready_launch

BAD, NOW = "20261120-110000-bbbb", "20261120-120000-cccc"
CHAT = {"name": "chat", "model": {"path": "bundled"}}
CODER = {"name": "coder", "model": {"path": "bundled"}, "on-request": {"start": True, "max-wait": 60}}


@pytest.fixture
async def database(home):
    home.create()
    migrate(home.database, home.root / "backups")
    database = Database(home.database)
    yield database
    await database.close()


@pytest.fixture
def store(database, home):
    return ProfileStore(database, home)


def published(home):
    known = read_startable(home.startable.read_bytes()) if home.startable.exists() else {}
    return {name: each.revision for name, each in known.items()}


async def activate(database, revision):
    async with database.session() as session:
        await session.merge(ActiveRevision(id=1, revision_id=revision.id))


async def test_the_file_follows_what_is_saved_renamed_and_deleted(store, home, database):
    await activate(database, await store.create(CHAT, author="ann"))
    assert published(home) == {}  # there is nothing to choose from
    await store.create(CODER, author="ann")
    assert published(home) == {"chat": "r1", "coder": "r1"}
    await store.save("coder", {**CODER, "served-model-name": "Coder"}, base=1, author="ann")
    assert published(home) == {"chat": "r1", "Coder": "r2"}
    await store.rename("coder", "coder-2", author="ann")
    assert published(home) == {"chat": "r1", "Coder": "r3"}
    await store.save("coder-2", {**CODER, "name": "coder-2", "on-request": {}}, base=3, author="ann")
    assert not home.startable.exists()
    await store.save("coder-2", {**CODER, "name": "coder-2"}, base=4, author="ann")
    await store.delete("coder-2")
    assert not home.startable.exists()


async def test_of_the_active_profile_the_active_revision_can_be_asked_for(store, home, database):
    await activate(database, await store.create(CHAT, author="ann"))
    await store.save("chat", {**CHAT, "max-num-seqs": 4}, base=1, author="ann")
    await store.create(CODER, author="ann")
    assert published(home)["chat"] == "r1"


async def test_a_start_of_the_console_writes_the_file_again(store, home, database):
    await activate(database, await store.create(CHAT, author="ann"))
    await store.create(CODER, author="ann")
    home.startable.unlink()
    await restore_startable(home, database)
    assert published(home) == {"chat": "r1", "coder": "r1"}


async def test_a_file_that_cannot_be_written_saves_nothing(store, home):
    home.startable.mkdir()
    (home.startable / "something").touch()
    with pytest.raises(NotWritten):
        await store.create(CODER, author="ann")
    assert await store.summaries() == []


def test_the_form_has_its_own_words_for_each_setting():
    (group,) = [each for each in groups(Draft().values, [], []) if each.name == "On request"]
    assert group.folded
    assert len({field.label for field in group.fields}) == len(group.fields) == 6
    (open_,) = [each for each in groups({"on-request.start": "true"}, [], []) if each.name == "On request"]
    assert not open_.folded


async def test_a_launch_says_that_a_request_asked_for_it(client, home):
    failed = failed_launch(home, BAD)
    failed.record.requested_by = "laptop"
    failed.save()
    back = ready_launch(home, NOW)
    back.record.returned_after = BAD
    back.save()
    asked, returned = await client.get(f"/launches/{BAD}"), await client.get(f"/launches/{NOW}")
    assert 'data-chain="requested"' in asked.text
    assert "laptop" in asked.text
    assert 'data-chain="returned-after"' in returned.text
    assert f'href="/launches/{BAD}"' in returned.text


def test_a_drain_for_a_request_says_what_follows():
    launch = LaunchRecord(id="1", profile="chat", revision="r1", started=1, state=State.DRAINING)
    draining = ApplianceState(state=State.DRAINING, since=1, version="", launch=launch, replaced_by="coder")
    view = EngineView(state=State.DRAINING, reachable=True, appliance=draining)
    assert "coder" in view.headline


def test_a_start_for_a_request_does_not_read_like_one_of_a_person():
    def text(**about):
        launch = LaunchRecord(id="2", profile="chat", started=1, state=State.STARTING, **about)
        state = ApplianceState(state=State.STARTING, since=1, version="", launch=launch)
        told = news(None, EngineView(state=State.STARTING, reachable=True, appliance=state))
        return told.text if told else ""

    assert len({text(), text(requested_by="laptop"), text(returned_after="1")}) == 3
