"""Profiles and revisions in a real SQLite file: what is kept, what is refused, and what two people at once get."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from console.db.models import ActiveRevision, Launch
from console.db.schema import migrate
from console.db.sessions import Database
from console.profiles.errors import InUse, InvalidDocument, NameTaken, NotFound, Stale
from console.profiles.records import ProfileSummary, SavedRevision
from console.profiles.store import ProfileStore

CHAT = {"name": "chat", "model": {"path": "bundled"}}


@pytest.fixture
async def database(home):
    migrate(home.database, home.root / "backups")
    database = Database(home.database)
    yield database
    await database.close()


@pytest.fixture
def store(database):
    return ProfileStore(database)


async def make_active(database, revision_id):
    async with database.session() as session:
        await session.merge(ActiveRevision(id=1, revision_id=revision_id))


async def add_launch(database, launch_id, profile, revision, *, ready=True, started, state=None):
    async with database.session() as session:
        session.add(
            Launch(
                launch_id=launch_id,
                profile=profile,
                revision=revision,
                state=state or ("ready" if ready else "failed"),
                started=started,
                ready_after_s=2.0 if ready else None,
                path="",
            )
        )


async def test_a_new_profile_has_one_revision_with_a_canonical_document(store):
    """What equals a default is not stored, so that equal profiles have equal documents and hashes."""
    made = await store.create({**CHAT, "max-num-seqs": 256, "dtype": "bfloat16"}, author="ann", note=" first ")
    assert (made.number, made.author, made.note) == (1, "ann", "first")
    assert made.document == {"dtype": "bfloat16", "model": {"path": "bundled"}, "name": "chat", "schema": 1}
    assert await store.revision("chat") == made


async def test_saving_adds_a_revision_and_keeps_the_old_one(store):
    await store.create(CHAT, author="ann")
    saved = await store.save("chat", {**CHAT, "max-num-seqs": 8}, base=1, author="bob", note="less")
    assert saved.new
    assert saved.revision.what == "chat r2"
    assert (await store.revision("chat", 1)).document.get("max-num-seqs") is None
    [change] = await store.diff("chat", 1, 2)
    assert (change.key, change.before, change.after) == ("max-num-seqs", 256, 8)


async def test_saving_what_is_saved_already_makes_no_revision(store):
    await store.create(CHAT, author="ann")
    saved = await store.save("chat", {**CHAT, "max-num-seqs": 256}, base=1, author="ann")
    assert not saved.new
    assert [revision.number for revision in (await store.history("chat")).revisions] == [1]


async def test_revisions_cannot_be_changed_in_the_database(store, database):
    await store.create(CHAT, author="ann")
    with pytest.raises(DBAPIError, match="immutable"):
        async with database.session() as session:
            await session.execute(text("UPDATE revisions SET note = 'other'"))


async def test_every_problem_of_a_document_is_told_and_nothing_is_saved(store):
    with pytest.raises(InvalidDocument) as refused:
        await store.create({"name": "Chat", "model": {"path": "bundled"}, "max-num-sequences": 3}, author="ann")
    assert {problem.field for problem in refused.value.problems} == {"name", "max-num-sequences"}
    assert await store.summaries() == []


async def test_a_name_is_taken_once(store):
    await store.create(CHAT, author="ann")
    with pytest.raises(NameTaken, match="chat") as refused:
        await store.create(CHAT, author="bob")
    assert (refused.value.field, refused.value.value) == ("name", "chat")


async def test_two_who_make_the_same_name_at_once_get_one_profile(store):
    outcomes = await asyncio.gather(*(store.create(CHAT, author=f"user{n}") for n in range(8)), return_exceptions=True)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1
    assert all(isinstance(outcome, NameTaken) for outcome in outcomes if isinstance(outcome, BaseException))


async def test_two_who_save_at_once_are_told_of_each_other(store):
    """Exactly one of eight saves on the same base is kept; the others see who was faster and what differs."""
    await store.create(CHAT, author="ann")
    outcomes = await asyncio.gather(
        *(store.save("chat", {**CHAT, "max-num-seqs": n}, base=1, author=f"user{n}") for n in range(1, 9)),
        return_exceptions=True,
    )
    kept = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    stale = [outcome for outcome in outcomes if isinstance(outcome, Stale)]
    assert (len(kept), len(stale)) == (1, 7)
    winner = kept[0].revision
    for refusal in stale:
        assert refusal.author == winner.author
        assert refusal.latest == 2
        assert [(change.key, change.before) for change in refusal.changes] == [
            ("max-num-seqs", winner.document["max-num-seqs"])
        ]


async def test_what_was_refused_as_stale_can_be_saved_on_top(store):
    await store.create(CHAT, author="ann")
    await store.save("chat", {**CHAT, "max-num-seqs": 8}, base=1, author="bob")
    mine = {**CHAT, "max-num-seqs": 9}
    with pytest.raises(Stale, match="r2 was saved by bob") as refused:
        await store.save("chat", mine, base=1, author="ann")
    saved = await store.save("chat", mine, base=refused.value.latest, author="ann")
    assert saved.revision.number == 3


async def test_the_active_profile_is_neither_deleted_nor_renamed(store, database):
    made = await store.create(CHAT, author="ann")
    await make_active(database, made.id)
    with pytest.raises(InUse, match=r"chat is active \(r1\) and cannot be deleted"):
        await store.delete("chat")
    with pytest.raises(InUse, match="cannot be renamed"):
        await store.rename("chat", "talk", author="ann")
    assert (await store.active()).what == "chat r1"


async def test_deleting_takes_the_revisions_along(store):
    await store.create(CHAT, author="ann")
    await store.save("chat", {**CHAT, "max-num-seqs": 8}, base=1, author="ann")
    assert await store.delete("chat") == 2
    with pytest.raises(NotFound, match="'chat'"):
        await store.history("chat")


async def test_renaming_is_a_revision_and_refuses_a_name_that_is_taken(store):
    await store.create(CHAT, author="ann")
    await store.create({**CHAT, "name": "talk"}, author="ann")
    with pytest.raises(NameTaken):
        await store.rename("chat", "talk", author="ann")
    renamed = await store.rename("chat", "speak", author="ann")
    assert (renamed.what, renamed.note) == ("speak r2", "Renamed from chat.")
    assert (await store.revision("speak", 1)).to_run()["name"] == "speak"


async def test_launches_are_shown_with_the_profile_that_held_the_name_then(store, database):
    """A renamed profile keeps its launches; one that takes a name later does not get the earlier holder's."""
    first = await store.create(CHAT, author="ann")
    await add_launch(database, "one", "chat", "r1", started=first.created + 1e-4)
    await asyncio.sleep(0.01)
    renamed = await store.rename("chat", "talk", author="ann")
    second = await store.create(CHAT, author="ann")
    await add_launch(database, "two", "talk", "r2", started=renamed.created + 10)
    await add_launch(database, "three", "chat", "r1", ready=False, started=second.created + 10)
    talk, chat = await store.history("talk"), await store.history("chat")
    assert {number: [o.launch for o in made] for number, made in talk.outcomes.items()} == {1: ["one"], 2: ["two"]}
    assert {number: [o.launch for o in made] for number, made in chat.outcomes.items()} == {1: ["three"]}
    assert {summary.name: summary.last_launch.launch for summary in await store.summaries()} == {
        "talk": "two",
        "chat": "three",
    }


async def test_rolling_back_prefers_what_has_not_failed_since(store, database):
    """A revision that was ready once and then crashed is gone back to only where there is no other."""
    first = await store.create(CHAT, author="ann")
    second = (await store.save("chat", {**CHAT, "max-num-seqs": 8}, base=1, author="ann")).revision
    third = (await store.save("chat", {**CHAT, "max-num-seqs": 9}, base=2, author="ann")).revision
    await make_active(database, third.id)
    await add_launch(database, "a", "chat", "r2", started=second.created + 10, state="failed")
    assert (await store.roll_back_target()).what == "chat r2"
    await add_launch(database, "b", "chat", "r1", started=first.created + 5)
    assert (await store.roll_back_target()).what == "chat r1"
    await add_launch(database, "c", "chat", "r2", started=second.created + 20, state="cut-off")
    assert (await store.roll_back_target()).what == "chat r1"
    await add_launch(database, "d", "chat", "r2", started=second.created + 30)
    assert (await store.roll_back_target()).what == "chat r2"
    await add_launch(database, "e", "chat", "r2", started=second.created + 40, state="cut-off")
    assert (await store.roll_back_target()).what == "chat r2"


async def test_rolling_back_leads_to_the_last_revision_that_was_ready(store, database):
    """Failed launches, the active revision itself and profiles that are gone are passed over."""
    first = await store.create(CHAT, author="ann")
    assert await store.roll_back_target() is None
    second = (await store.save("chat", {**CHAT, "max-num-seqs": 8}, base=1, author="ann")).revision
    third = (await store.save("chat", {**CHAT, "max-num-seqs": 9}, base=2, author="ann")).revision
    gone = await store.create({**CHAT, "name": "gone"}, author="ann")
    await add_launch(database, "a", "chat", "r1", started=first.created + 1)
    await add_launch(database, "b", "chat", "r2", started=second.created + 2)
    await add_launch(database, "c", "gone", "r1", started=gone.created + 3)
    await add_launch(database, "d", "chat", "r3", ready=False, started=third.created + 4)
    await add_launch(database, "e", "file", "", started=third.created + 5)
    await store.delete("gone")
    await make_active(database, third.id)
    assert (await store.roll_back_target()).what == "chat r2"
    await make_active(database, second.id)
    assert (await store.roll_back_target()).what == "chat r1"


def test_the_list_survives_a_damaged_document() -> None:
    """A row from elsewhere, such as a restored database."""
    documents: tuple[dict[str, Any], ...] = ({}, {"model": None}, {"model": {}}, {"model": "qwen"})
    for document in documents:
        latest = SavedRevision(
            id=1, profile="p", number=1, document=document, content_hash="", note="", author="", created=0.0
        )
        summary = ProfileSummary(name="p", latest=latest, active=None, last_launch=None)
        assert summary.model == ""
