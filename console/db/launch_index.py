"""Keeps the `launches` table in step with the folders `launches/<id>/`: the folder is the truth, rows are for lists."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.home import Home
from appliance.protocol import LaunchRecord, State
from appliance.supervisor.launch_folder import RECORD
from console.db.models import ActiveRevision, Launch
from console.db.sessions import Database
from console.launches.outcome import REFUSED, refused

log = logging.getLogger(__name__)

_decoder = msgspec.json.Decoder(LaunchRecord)


class LaunchIndex:
    """Remembers when each `launch.json` was last written, so that a look reads only those that changed."""

    def __init__(self, database: Database, home: Home) -> None:
        self._database = database
        self._home = home
        self._read: dict[str, tuple[int, int]] = {}

    async def refresh(self) -> bool:
        """Whether anything changed."""
        changed = await asyncio.to_thread(self._changed)
        if not changed:
            return False
        async with self._database.session() as session:
            for _, _, record in changed:
                await _write(session, record, self._home.launch(record.id))
        self._read.update((name, stamp) for name, stamp, _ in changed)
        return True

    def _changed(self) -> list[tuple[str, tuple[int, int], LaunchRecord]]:
        """(folder's name, when written and how large, record) of each, oldest first."""
        changed: list[tuple[str, tuple[int, int], LaunchRecord]] = []
        for path in self._home.launches.glob("*/launch.json"):
            try:
                stat = path.stat()
                stamp = (stat.st_mtime_ns, stat.st_size)
                if self._read.get(path.parent.name) != stamp:
                    changed.append((path.parent.name, stamp, _decoder.decode(path.read_bytes())))
            except OSError:
                continue  # gone meanwhile, or not ours to read: the others are indexed all the same
            except msgspec.MsgspecError as error:
                log.warning("%s is not a launch record and is left out: %s", path, error)
                self._read[path.parent.name] = stamp
        return sorted(changed, key=lambda item: item[0])


async def _write(session: AsyncSession, record: LaunchRecord, folder: Path) -> None:
    values = {
        "profile": record.profile,
        "revision": record.revision,
        "engine": record.engine,
        "state": REFUSED if record.state is State.FAILED and refused(record) else record.state.value,
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


async def last_good_record(session: AsyncSession, home: Home, profile: str, before: str) -> LaunchRecord | None:
    """The record of the last launch of `profile`, earlier than the launch `before`, that was ready: what the phase line
    compares with. None too where its folder has been deleted."""
    good = select(Launch.launch_id).where(Launch.profile == profile, Launch.ready_after_s.is_not(None))
    launch_id = await session.scalar(good.where(Launch.launch_id < before).order_by(Launch.launch_id.desc()).limit(1))
    if launch_id is None:
        return None
    try:
        return _decoder.decode((home.launch(launch_id) / RECORD).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


async def active_revision(session: AsyncSession) -> tuple[str, str] | None:
    """(profile, revision label) of what runs, or is to run at the next start."""
    active = await session.scalar(select(ActiveRevision))
    return (active.revision.profile.name, active.revision.label) if active else None
