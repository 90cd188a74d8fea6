"""Commits and carries out a restore, so that a power failure at any moment leaves either the old state or the new one.

Everything to be installed is in one folder, checked and complete. Renaming that folder to `restore-pending` commits the
restore. The steps that follow are idempotent: each does what is left to do, and the next process to start continues an
interrupted restore before anything reads the state.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec

from appliance.home import Home, sync_folder, write_atomically
from appliance.profile.active import make_room
from console.backups.archive_format import ACTIVE, DATABASE, LAUNCHES
from console.backups.disk_space import not_written
from console.backups.errors import BackupError
from console.backups.interrupted_restore import DONE, PENDING, STAGED

PLAN = "plan.json"
IN_PLACE = "database-is-in-place"
"""A marker file in the pending folder: the database is replaced only once, so that later writes are not lost."""

LOCKED_FOR_S = 20.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`folders` maps each folder that is replaced to the files that it will contain. `launches` are added. `name` is
    the backup's."""

    name: str
    folders: dict[str, list[str]]
    launches: list[str]


def decide(home: Home, staged: Path, plan: Plan) -> None:
    """Commit: from here on the restore will happen, even if this process ends."""
    write_atomically(staged / PLAN, msgspec.json.encode(plan))
    os.sync()  # once for all: a backup of many launches has thousands of small files
    staged.rename(home.root / PENDING)
    sync_folder(home.root)


def carry_out(home: Home) -> Plan | None:
    """Finish a committed restore; None if there is none. Raises BackupError if the disk prevents it: the rest stays
    pending, and nothing is lost."""
    pending = home.root / PENDING
    if not pending.is_dir():
        return None
    try:
        plan = msgspec.json.decode((pending / PLAN).read_bytes(), type=Plan)
        _add_launches(home, pending / LAUNCHES, plan.launches)
        if not (pending / IN_PLACE).exists():
            _replace_database(home.database, pending / DATABASE)
            write_atomically(pending / IN_PLACE, b"")
        make_room(home)
        for folder, names in plan.folders.items():
            _replace_files(home.root / folder, pending / folder, names, keep=folder == ACTIVE)
        os.sync()
        done = home.root / f"{DONE}{time.time_ns()}"
        pending.rename(done)
    except (OSError, sqlite3.Error, msgspec.MsgspecError) as error:
        raise BackupError(
            "pending",
            f"A restore could not be finished: {error}. Its files are kept in {pending}.",
            f"Free some space for {home.root} and make it writable, then restart the console to finish the restore.",
            status=503,
        ) from error
    shutil.rmtree(done, ignore_errors=True)
    return plan


def take_back(home: Home) -> bool:
    """Cancel a committed restore that failed before the database was replaced: the old state stays, as do launches
    that were added. Returns whether that was still possible."""
    pending = home.root / PENDING
    if not pending.is_dir() or (pending / IN_PLACE).exists():
        return False
    pending.rename(home.root / f"{DONE}{time.time_ns()}")
    return True


def recover(home: Home) -> Plan | None:
    """Finish a pending restore and remove leftovers; returns what was done."""
    finished = carry_out(home)
    for left in (*home.root.glob(f"{STAGED}*"), *home.root.glob(f"{DONE}*")):
        shutil.rmtree(left, ignore_errors=True)
    return finished


@contextmanager
def staging(home: Home) -> Iterator[Path]:
    """A folder beside the state, on the same disk; removed at the end unless a restore used it."""
    stage = home.root / f"{STAGED}{time.time_ns()}"
    try:
        stage.mkdir(mode=0o700)
        yield stage
    except OSError as error:
        raise not_written(Path(error.filename) if isinstance(error.filename, str) else stage, error) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _add_launches(home: Home, staged: Path, launches: list[str]) -> None:
    """Existing launches are left unchanged."""
    home.launches.mkdir(mode=0o700, exist_ok=True)
    for launch in launches:
        source, target = staged / launch, home.launch(launch)
        if source.is_dir() and not os.path.lexists(target):
            source.rename(target)


def _replace_database(database: Path, staged: Path) -> None:
    """In one transaction of the live database: readers see either the old content or the new. A file that is no longer
    a valid database is moved aside."""
    with closing(sqlite3.connect(f"{staged.as_uri()}?mode=ro&immutable=1", uri=True)) as source:
        try:
            _copy_over(source, database)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise
            put_aside(database)
            _copy_over(source, database)


def _copy_over(source: sqlite3.Connection, database: Path) -> None:
    with closing(sqlite3.connect(database, timeout=LOCKED_FOR_S, isolation_level=None)) as target:
        (mode,) = target.execute("PRAGMA journal_mode = WAL").fetchone()
        target.execute("PRAGMA synchronous = FULL")
        until = time.monotonic() + LOCKED_FOR_S

        def patient(status: int, remaining: int, total: int) -> None:
            if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > until:
                raise sqlite3.OperationalError(f"the database was locked for {LOCKED_FOR_S:.0f} seconds")

        source.backup(target, progress=patient)
        assert mode == "wal", mode
        target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.chmod(0o600)


def put_aside(database: Path) -> Path:
    """Move an unreadable database aside, with its journal files; returns its new path."""
    aside = database.with_name(f"{database.name}.unreadable-{time.time_ns()}")
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            database.with_name(database.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


def _replace_files(folder: Path, staged: Path, names: list[str], *, keep: bool) -> None:
    """Replace each file atomically and remove the others; with `keep`, only those that a backup can contain."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for name in names:
        with suppress(FileNotFoundError):  # installed before the previous process ended
            os.replace(staged / name, folder / name)
    others = ("profile.yaml", "keys.json") if keep else tuple(entry.name for entry in folder.iterdir())
    for name in others:
        if name not in names and not name.startswith(".") and not (folder / name).is_dir():
            (folder / name).unlink(missing_ok=True)
