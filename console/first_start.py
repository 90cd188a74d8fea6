"""Keeps database and active profile together at a start: a new database gets the bundled profile, a lost active profile
is written out again."""

from __future__ import annotations

import time

from sqlalchemy import func, select

from appliance.home import Home
from appliance.profile import document as documents
from appliance.profile.active import ActiveProfile, bundled_profile, read_active, write_active
from console import authors
from console.db.models import ActiveRevision, Profile, Revision
from console.db.sessions import Database


async def seed_database(home: Home, database: Database) -> None:
    """Keep the bundled profile as revision 1, active, in a database without any profile. It is as old as the file that
    the engine was started with: its first launch is this revision's."""
    loaded = documents.load(bundled_profile())
    written = home.active_profile.stat().st_mtime if home.active_profile.exists() else time.time()
    async with database.writing() as session:
        if await session.scalar(select(func.count()).select_from(Profile)):
            return
        first = Revision(
            profile=Profile(name=loaded.name, created=written),
            number=1,
            document=documents.to_document(loaded),
            content_hash=documents.content_hash(loaded),
            note="Comes with Ingot.",
            author=authors.FIRST_START,
            created=written,
        )
        session.add(first)
        await session.flush()
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
