"""The database file: made, left alone, upgraded, refused."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select, text, update
from sqlalchemy.exc import IntegrityError

import migrations
from appliance.home import Home
from console.db import schema
from console.db.models import ActiveRevision, Base, Profile, Revision
from console.db.sessions import Database


@pytest.fixture
async def database(home: Home):
    schema.migrate(home.database, home.root / "backups")
    opened = Database(home.database)
    yield opened
    await opened.close()


def test_a_new_file_takes_well_under_a_second(home):
    """A fresh folder is not felt at the start, and one at head costs nothing."""
    import alembic.command  # noqa: F401  its import is not what is measured

    began = time.process_time()
    schema.migrate(home.database, home.root / "backups")
    assert time.process_time() - began < 0.8
    began = time.process_time()
    assert schema.migrate(home.database, home.root / "backups") is None
    assert time.process_time() - began < 0.05
    assert schema.current(home.database) == migrations.HEAD


def test_migrations_make_what_the_models_say(home):
    """Whoever changes a model without a migration is told here."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    schema.migrate(home.database, home.root / "backups")
    engine = create_engine(f"sqlite:///{home.database}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


def test_the_list_of_revisions_is_the_files(home):
    """`migrations.REVISIONS` is every file of versions/, in order."""
    folder = Path(migrations.__file__).parent / "versions"
    files = sorted(path.name.split("_")[0] for path in folder.glob("[0-9]*.py"))
    assert list(migrations.REVISIONS) == files


def test_an_upgrade_backs_up_first(home, monkeypatch):
    """Before the schema is changed, the file as it was is copied to backups/."""
    schema.migrate(home.database, home.root / "backups")
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'older'")
    monkeypatch.setattr(schema, "REVISIONS", ("older", migrations.HEAD))
    upgraded: list[Path] = []
    monkeypatch.setattr(schema, "upgrade", upgraded.append)
    backup = schema.migrate(home.database, home.root / "backups")
    assert upgraded == [home.database]
    assert backup is not None
    assert schema.current(backup) == "older"
    assert backup.stat().st_mode & 0o077 == 0


def test_a_newer_schema_is_refused(home):
    """A file that a newer Ingot wrote is not touched, and the message says what to do."""
    schema.migrate(home.database, home.root / "backups")
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = home.database.read_bytes()
    with pytest.raises(schema.SchemaError, match=r"9999.*newer.*backup"):
        schema.migrate(home.database, home.root / "backups")
    assert home.database.read_bytes() == before


async def test_connections_are_set_up(database):
    """WAL, foreign keys and a busy timeout are on for every connection."""
    async with database.session() as session:
        wanted = {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 1, "busy_timeout": 5000}
        for name, value in wanted.items():
            assert (await session.execute(text(f"PRAGMA {name}"))).scalar() == value


async def _revision(database: Database) -> int:
    async with database.session() as session:
        profile = Profile(name="p")
        session.add(profile)
        await session.flush()
        revision = Revision(profile_id=profile.id, number=1, document={"name": "p"}, content_hash="x")
        session.add(revision)
        await session.flush()
        return revision.id


async def test_revisions_are_immutable(database):
    """What was saved stays as it was, whoever tries to change it."""
    await _revision(database)
    with pytest.raises(IntegrityError, match="immutable"):
        async with database.session() as session:
            await session.execute(update(Revision).values(note="changed"))
    async with database.session() as session:
        assert (await session.scalars(select(Revision))).one().note == ""


async def test_only_one_revision_is_active(database):
    """There is one active revision, and it cannot be deleted from under the engine."""
    revision = await _revision(database)
    async with database.session() as session:
        session.add(ActiveRevision(revision_id=revision))
    with pytest.raises(IntegrityError):
        async with database.session() as session:
            session.add(ActiveRevision(id=2, revision_id=revision))
    with pytest.raises(IntegrityError):
        async with database.session() as session:
            await session.delete(await session.get_one(Revision, revision))


async def test_a_failed_transaction_leaves_nothing(database):
    """`session()` rolls back when its body raises."""

    async def fail() -> None:
        async with database.session() as session:
            session.add(Profile(name="gone"))
            await session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    async with database.session() as session:
        assert (await session.scalars(select(Profile))).all() == []
