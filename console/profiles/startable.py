"""Tells the front door which profiles a request may start: `active/on-request.json`, written as the rows change."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.home import Home
from appliance.profile.startable import Written, write_startable
from console.db.models import ActiveRevision, Profile, Revision
from console.db.sessions import Database
from console.profiles.errors import NotWritten


async def publish_startable(session: AsyncSession, home: Home) -> None:
    """Within the transaction that changed the rows: if the file cannot be written, they are rolled back. Of the active
    profile the active revision counts, of others the latest. Raises NotWritten."""
    await session.flush()
    row = await session.scalar(select(ActiveRevision))
    active = row.revision if row is not None else None
    newest = select(func.max(Revision.id)).group_by(Revision.profile_id).scalar_subquery()
    latest = await session.scalars(select(Revision).join(Profile).where(Revision.id.in_(newest)).order_by(Profile.name))
    others = [
        revision
        for revision in latest
        if (active is None or revision.profile_id != active.profile_id) and _may_be_started(revision)
    ]
    profiles = [_written(revision, active=revision is active) for revision in (*([active] if active else []), *others)]
    try:
        write_startable(home, profiles)
    except OSError as error:
        raise NotWritten(
            f"{home.startable} could not be written: {error.strerror}. Nothing was changed.",
            f"Free some space, or make {home.active} writable for the user that runs this, then try again.",
        ) from error


async def restore_startable(home: Home, database: Database) -> None:
    """Rewrite the file from the database, when the console starts."""
    async with database.session() as session:
        await publish_startable(session, home)


def _may_be_started(revision: Revision) -> bool:
    section = revision.document.get("on-request")
    return isinstance(section, dict) and section.get("start") is True


def _written(revision: Revision, *, active: bool) -> Written:
    document = {**revision.document, "name": revision.profile.name}
    return Written(revision=f"r{revision.number}", saved=revision.created, document=document, active=active)
