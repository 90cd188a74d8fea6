"""Keeps the `launches` table in step with the folders `launches/<id>/`: the folder is the truth, a row is a copy of its
record for queries."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.launches.catalogue import Catalogue
from appliance.protocol import LaunchRecord
from console.db.models import ActiveRevision, Launch
from console.db.sessions import Database
from console.launches.outcome import listed_state


class LaunchIndex:
    """Writes the rows of launches whose record has changed since it wrote them."""

    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        self._database = database
        self._catalogue = catalogue
        self._written: dict[str, LaunchRecord] = {}

    async def refresh(self) -> bool:
        """Whether anything changed."""
        changed = await asyncio.to_thread(self._changed)
        if not changed:
            return False
        async with self._database.session() as session:
            for path, record in changed:
                await _write(session, record, path)
        self._written.update((path.name, record) for path, record in changed)
        return True

    def _changed(self) -> list[tuple[Path, LaunchRecord]]:
        """(folder, record) of each, oldest first. A launch without a readable record has no row."""
        found = []
        for folder in reversed(self._catalogue.folders()):
            record = folder.settled or folder.stored_record()
            if record is not None and record is not self._written.get(folder.id):
                found.append((folder.path, record))
        return found


async def _write(session: AsyncSession, record: LaunchRecord, folder: Path) -> None:
    values = {
        "profile": record.profile,
        "revision": record.revision,
        "engine": record.engine,
        "state": listed_state(record),
        "reason": record.reason,
        "cause": record.diagnosis.summary if record.diagnosis else _first_error(record),
        "started": record.started,
        "ready_after_s": record.ready_after_s,
        "ended": record.ended,
        "path": str(folder),
    }
    # Not an upsert: that would take a number for each try, and leave gaps between the launches' numbers.
    known = await session.scalar(
        update(Launch).where(Launch.launch_id == record.id).values(**values).returning(Launch.number)
    )
    if known is None:
        session.add(Launch(launch_id=record.id, **values))
        await session.flush()


def _first_error(record: LaunchRecord) -> str | None:
    return next((finding.message for finding in record.findings if finding.severity == "error"), None)


async def recent_launches(session: AsyncSession, limit: int) -> list[Launch]:
    """The last ones, newest first."""
    return list(await session.scalars(select(Launch).order_by(Launch.launch_id.desc()).limit(limit)))


async def last_good_record(
    session: AsyncSession, catalogue: Catalogue, profile: str, before: str
) -> LaunchRecord | None:
    """The record of the last launch of `profile`, earlier than the launch `before`, that was ready: what the phase line
    compares with. None too where its folder has been deleted."""
    good = select(Launch.launch_id).where(Launch.profile == profile, Launch.ready_after_s.is_not(None))
    launch_id = await session.scalar(good.where(Launch.launch_id < before).order_by(Launch.launch_id.desc()).limit(1))
    folder = catalogue.find(launch_id) if launch_id is not None else None
    return folder.stored_record() if folder is not None else None


async def active_revision(session: AsyncSession) -> tuple[str, str] | None:
    """(profile, revision label) of what runs, or is to run at the next start."""
    active = await session.scalar(select(ActiveRevision))
    return (active.revision.profile.name, active.revision.label) if active else None
