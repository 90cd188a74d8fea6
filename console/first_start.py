"""Keeps database and active profile together at a start: a new database gets the bundled profile, a lost active profile
is written out again."""

from __future__ import annotations

from sqlalchemy import func, select

from appliance.home import Home
from appliance.profile.active import ActiveProfile, read_active, write_active
from console.db.models import ActiveRevision, Profile
from console.db.sessions import Database
from console.new_folder import bundled_profile
from console.profiles.store import ProfileStore


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
    document = {**active.revision.document, "name": active.revision.profile.name}
    write_active(home, ActiveProfile(launch=None, revision=active.revision.label, document=document))
    return True
