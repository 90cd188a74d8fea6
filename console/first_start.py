"""What a state folder is given when it is new: the bundled model's profile as the active one, first as the file that
the engine reads (so that it can start at once), then as a row in the database."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from sqlalchemy import func, select

from appliance.home import Home
from appliance.profile import document as documents
from appliance.profile.active import ActiveProfile, read_active, write_active
from console.db.models import ActiveRevision, Profile
from console.db.sessions import Database
from console.profiles.store import ProfileStore

FIRST_REVISION = "r1"


def bundled_profile() -> dict[str, Any]:
    return documents.parse((files("appliance.selftest") / "profile.yaml").read_text(encoding="utf-8"))


def seed_active(home: Home) -> bool:
    """Make the bundled profile the next launch's, on a folder that has neither a database nor an active profile."""
    if home.database.exists() or home.active_profile.exists():
        return False
    write_active(home, ActiveProfile(launch=None, revision=FIRST_REVISION, document=bundled_profile()))
    return True


async def seed_database(database: Database) -> None:
    """Keep the bundled profile as revision 1, active, in a database without any profile."""
    async with database.session() as session:
        if await session.scalar(select(func.count()).select_from(Profile)):
            return
    first = await ProfileStore(database).create(bundled_profile(), author="Ingot", note="Comes with Ingot.")
    async with database.writing() as session:
        session.add(ActiveRevision(revision_id=first.id))


async def restore_active(home: Home, database: Database) -> bool:
    """Write the active revision out again where its file is gone; the answer is whether that was needed."""
    if read_active(home) is not None:
        return False
    async with database.session() as session:
        active = await session.scalar(select(ActiveRevision))
    if active is None:
        return False
    write_active(home, ActiveProfile(launch=None, revision=active.revision.label, document=active.revision.document))
    return True
