"""Restores a backup: it is read, checked and migrated beside the state first, then the current state is backed up, and
only then is anything replaced (`console.backups.restore_steps`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import msgspec

from appliance.home import Home
from appliance.profile.active import read_active, write_active
from appliance.profile.schema import ProfileError
from console import first_start
from console.access.keys import restore_keys
from console.backups import archive_format, create, reading, restore_steps
from console.backups.adopt import adopt
from console.backups.after_restore import AfterRestore, foresee
from console.backups.archive_format import ACTIVE, LAUNCHES, SELFTEST, SQLITE_MAGIC, TRUSTED_KEYS, Manifest, Summary
from console.backups.carry_over import carry_over
from console.backups.create import Report, silent
from console.backups.disk_space import DiskSpace
from console.backups.errors import BackupError
from console.backups.restore_steps import Plan
from console.backups.snapshot import contents_of
from console.db.sessions import Database
from console.profiles.startable import restore_startable
from migrations import HEAD

KEPT_ANEW = 5
"""How often the current state is backed up again because somebody wrote to it meanwhile."""
FROM = "from"
"""In the staging folder: the backup's files other than launches, unchanged."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did. `here_already` counts launches of the backup that existed here and were left unchanged;
    `revoked` names the keys of the backup that have been revoked since; `kept` is the backup of the previous state."""

    name: str
    ingot: str
    schema: str
    migrated: bool
    launches: int
    here_already: int
    accounts: list[str]
    active: str
    revoked: list[str]
    kept: str | None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that could be restored here. `ingot` is empty for a copy of the database alone."""

    name: str
    size: int
    files: int
    ingot: str
    schema: str
    migrates: bool
    made: float
    contents: archive_format.Contents


def check(home: Home, path: Path, report: Report = silent) -> Checked:
    """Read all of a backup and try its database, without changing the state. Raises BackupError."""
    with restore_steps.staging(home) as stage, path.open("rb") as raw:
        staged = _Stage(home, stage, path.name, keep_launches=False)
        manifest = staged.fill(raw, path.stat().st_size, report)
        return Checked(
            name=path.name,
            size=path.stat().st_size,
            files=len(manifest.files) if manifest else 1,
            ingot=manifest.ingot if manifest else "",
            schema=staged.schema,
            migrates=staged.schema != HEAD,
            made=manifest.made if manifest else path.stat().st_mtime,
            contents=manifest.contents if manifest else contents_of(staged.database, launches=0, trusted_keys=[]),
        )


def restore(
    home: Home,
    raw: IO[bytes],
    name: str,
    size: int,
    *,
    report: Report = silent,
    judge: Callable[[AfterRestore], None] = lambda after: None,
) -> Restored:
    """Replace the current state with that of a backup. Once everything has been checked, `judge` gets what will be
    there afterwards and may raise. The caller holds the console's lock, or is the console.

    Raises BackupError. Nothing changes until the restore is committed; after that, the next start finishes it."""
    with restore_steps.staging(home) as stage:
        staged = _Stage(home, stage, name, keep_launches=True)
        manifest = staged.fill(raw, size, report)
        after = foresee(home, staged.database, manifest.contents.trusted_keys if manifest else None)
        judge(after)
        DiskSpace(home.root, "The restore", 3 * staged.database.stat().st_size)
        os.sync()  # now, to keep the time between the backup and the replacement short
        kept = _keep_present(home)
        revoked = carry_over(home, staged.database)
        staged.write_active()
        steps = staged.plan()
        here_already = sum(os.path.lexists(home.launch(launch)) for launch in steps.launches)
        _replace(home, stage, steps)
    return Restored(
        name=name,
        ingot=manifest.ingot if manifest else "",
        schema=staged.schema,
        migrated=staged.schema != HEAD,
        launches=len(steps.launches) - here_already,
        here_already=here_already,
        accounts=after.contents.accounts,
        active=after.contents.active,
        revoked=revoked,
        kept=kept,
    )


def _replace(home: Home, stage: Path, steps: Plan) -> None:
    restore_steps.decide(home, stage, steps)
    try:
        restore_steps.carry_out(home)
    except BackupError as error:
        if not restore_steps.take_back(home):
            raise
        raise BackupError(
            "rolled-back",
            f"The restore failed and was rolled back: {error.message.partition(': ')[2]}",
            f"Nothing was changed. Check the disk and the permissions of {home.root}, then try again.",
            status=503,
        ) from error


class _Stage:
    """One backup, unpacked into its own folder and prepared for the restore."""

    def __init__(self, home: Home, folder: Path, name: str, *, keep_launches: bool) -> None:
        self._home = home
        self._folder = folder
        self._name = name
        self._keep_launches = keep_launches
        self._manifest: Manifest | None = None
        self._room: DiskSpace | None = None
        self.database = folder / archive_format.DATABASE
        self.schema = ""

    def fill(self, raw: IO[bytes], size: int, report: Report) -> Manifest | None:
        """Unpack and check; None for a copy of the database alone."""
        theirs = self._folder / FROM / archive_format.DATABASE
        theirs.parent.mkdir(mode=0o700)
        magic = raw.read(len(SQLITE_MAGIC))
        raw.seek(0)
        if magic == SQLITE_MAGIC:
            DiskSpace(self._folder, "The restore", 2 * size)
            with theirs.open("xb") as copy:
                shutil.copyfileobj(raw, copy)
        else:
            self._manifest = reading.read(raw, self._name, size, self._sink, self._begin, report)
        self.schema = adopt(theirs, self.database, self._home.launches, self._name)
        if self._manifest is not None and self._manifest.schema != self.schema:
            raise BackupError(
                "damaged",
                f"The manifest of {self._name} gives database schema {self._manifest.schema}, but the database "
                f"has schema {self.schema}.",
                "Create the backup again.",
            )
        return self._manifest

    def _begin(self, summary: Summary) -> None:
        self._room = DiskSpace(self._folder, "The unpacked backup", summary.bytes if self._keep_launches else 0)

    @contextlib.contextmanager
    def _sink(self, name: str, written: float) -> Iterator[Callable[[bytes], object]]:
        in_launches = name.startswith(f"{LAUNCHES}/")
        if in_launches and not self._keep_launches:
            yield lambda chunk: None
            return
        path = (self._folder if in_launches else self._folder / FROM) / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        assert self._room is not None
        with open(path, "xb", opener=_private) as file:

            def write(chunk: bytes) -> None:
                assert self._room is not None
                self._room.took(len(chunk))
                file.write(chunk)

            yield write
        if 0 <= written < 2**33:
            os.utime(path, (written, written))

    def write_active(self) -> None:
        """Write the files of `active/` from the database, as each start of the console does. If it has no active
        revision, use the backup's own file, with a new launch."""
        stage = Home.at(self._folder)
        stage.active.mkdir(mode=0o700)
        asyncio.run(self._write_active(stage))
        if not stage.active_profile.exists():
            with contextlib.suppress(ProfileError):  # unreadable there, so unreadable here
                active = read_active(Home.at(self._folder / FROM))
                if active is not None:
                    write_active(stage, msgspec.structs.replace(active, launch=None))

    async def _write_active(self, stage: Home) -> None:
        database = Database(stage.database)
        try:
            await restore_keys(stage, database)
            await restore_startable(stage, database)
            await first_start.restore_active(stage, database)
        finally:
            await database.close()

    def plan(self) -> Plan:
        folders = {ACTIVE: _names(self._folder / ACTIVE)}
        if self._manifest is not None:
            for folder in (SELFTEST, TRUSTED_KEYS):
                source = self._folder / FROM / folder
                if source.exists():
                    source.rename(self._folder / folder)
                folders[folder] = _names(self._folder / folder)
        return Plan(name=self._name, folders=folders, launches=_names(self._folder / LAUNCHES))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


def _keep_present(home: Home) -> str | None:
    """Back up the current state, without launches, since a restore removes none. None if there is no state yet or it
    cannot be read; the restore moves an unreadable database aside."""
    if not home.database.exists():
        return None
    folder = home.root / "backups"
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        with closing(sqlite3.connect(home.database)) as watching:
            for _ in range(KEPT_ANEW):
                before = watching.execute("PRAGMA data_version").fetchone()
                path = create.create(home, folder, with_launches=False).path
                if watching.execute("PRAGMA data_version").fetchone() == before:
                    break
                path.unlink()  # the database has changed since: back up that change, too
            else:
                raise BackupError(
                    "state-busy",
                    "The state changed during each attempt to back it up, so the restore did not start.",
                    "Wait until nobody is making changes, then restore again.",
                    status=409,
                )
        return path.name
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return None
        raise
