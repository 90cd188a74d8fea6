"""A snapshot of the state: the database and the matching files in `active/`, read while the database is locked against
writers. The engine keeps writing its launch folder; the snapshot does not wait for it."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from appliance.home import Home, read_file
from console.backups.archive_format import ACTIVE, DATABASE, LAUNCHES, SELFTEST, TRUSTED_KEYS, Contents, is_allowed
from console.backups.errors import BackupError
from console.db import schema

LOCK_WITHIN_S = 10.0
MOST_ACTIVE_BYTES = 16 << 20
NOT_KEPT = ("sessions", "setup_code")
"""Tables left out: restoring a backup must not sign in a browser that has been signed out since."""


@dataclass(frozen=True)
class Source:
    """A file of the state, and how much of it belongs to the snapshot."""

    name: str
    path: Path
    size: int


@dataclass(frozen=True)
class Snapshot:
    """`left_out` names entries of the state's folders that cannot be part of a backup."""

    database: Path
    schema: str
    active: dict[str, bytes]
    files: list[Source]
    left_out: list[str]
    contents: Contents

    @property
    def bytes(self) -> int:
        small = sum(map(len, self.active.values()))
        return self.database.stat().st_size + small + sum(source.size for source in self.files)


def require_state(home: Home) -> None:
    """Raises BackupError if nothing has been set up yet."""
    if not home.database.is_file():
        raise BackupError(
            "nothing-to-back-up",
            f"There is nothing to back up in {home.root}: no console has run on this state folder.",
            "Start one with `ingot up`, or set INGOT_HOME to another state folder.",
            status=409,
        )


def take(home: Home, folder: Path, *, with_launches: bool) -> Snapshot:
    """Copy the database into `folder` and note the rest. Raises BackupError, sqlite3.Error, OSError."""
    with closing(sqlite3.connect(home.database, isolation_level=None)) as reading:
        with writers_wait(home.database):
            reading.execute("BEGIN")
            reading.execute("SELECT count(*) FROM sqlite_master").fetchone()  # from here on it reads this moment
            active = dict(_active_files(home))
        copy = _copied(reading, folder)
    files, left_out = _files(home, with_launches=with_launches)
    launches = {source.path.parent.name for source in files if source.name.startswith(f"{LAUNCHES}/")}
    trusted = [source.path.name for source in files if source.name.startswith(f"{TRUSTED_KEYS}/")]
    contents = contents_of(copy, launches=len(launches), trusted_keys=trusted)
    return Snapshot(copy, schema.current(copy) or "", active, files, left_out, contents)


@contextmanager
def writers_wait(database: Path) -> Iterator[None]:
    """Nobody else writes to the database while the body runs. Activating a profile or creating a key holds the
    database's write lock while it writes the file in `active/`, so the two are always consistent."""
    uri = f"{database.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, timeout=LOCK_WITHIN_S, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


def _copied(reading: sqlite3.Connection, folder: Path) -> Path:
    """A copy of the database as a connection sees it, without the tables left out and without free pages, which may
    contain deleted rows. It blocks nobody, however slow the disk of `folder` is."""
    whole, copy = folder / "whole.db", folder / DATABASE
    for path in (whole, copy):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # SQLite accepts an empty file
    with closing(sqlite3.connect(whole, isolation_level=None)) as connection:
        reading.backup(connection)
        for table in NOT_KEPT:
            if _has(connection, table):
                connection.execute(f"DELETE FROM {table}")
        connection.execute("VACUUM INTO ?", (str(copy),))
    for left in folder.glob("whole.db*"):
        left.unlink()
    return copy


def contents_of(database: Path, *, launches: int, trusted_keys: list[str]) -> Contents:
    """Works for a database of any version: a missing table counts as empty."""
    with closing(sqlite3.connect(database)) as connection:
        accounts, active = [], ""
        if _has(connection, "users"):
            accounts = [name for (name,) in connection.execute("SELECT name FROM users ORDER BY name")]
        if _has(connection, "active_revision"):
            row = connection.execute(
                "SELECT profiles.name, revisions.number FROM active_revision "
                "JOIN revisions ON revisions.id = active_revision.revision_id "
                "JOIN profiles ON profiles.id = revisions.profile_id"
            ).fetchone()
            active = f"{row[0]} r{row[1]}" if row else ""
        return Contents(
            accounts=accounts,
            profiles=_count(connection, "profiles"),
            revisions=_count(connection, "revisions"),
            active=active,
            api_keys=_count(connection, "api_keys"),
            launches=launches,
            trusted_keys=sorted(trusted_keys),
        )


def accepted_keys(database: Path) -> dict[str, str]:
    """The API keys that a database accepts: names by digest. None of one without that table."""
    with closing(sqlite3.connect(database)) as connection:
        if not _has(connection, "api_keys"):
            return {}
        return dict(connection.execute("SELECT sha256, name FROM api_keys").fetchall())


def present(home: Home) -> Contents:
    """The contents of the current state."""
    files, _ = _files(home, with_launches=False)
    trusted = [source.path.name for source in files if source.name.startswith(f"{TRUSTED_KEYS}/")]
    with suppress(FileNotFoundError):
        launches = sum(entry.is_dir(follow_symlinks=False) for entry in os.scandir(home.launches))
        return contents_of(home.database, launches=launches, trusted_keys=trusted)
    return contents_of(home.database, launches=0, trusted_keys=trusted)


def _has(connection: sqlite3.Connection, table: str) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return connection.execute(query, (table,)).fetchone() is not None


def _count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) if _has(connection, table) else 0


def _active_files(home: Home) -> Iterator[tuple[str, bytes]]:
    for path in (home.active_profile, home.api_keys):
        with suppress(FileNotFoundError):
            yield f"{ACTIVE}/{path.name}", read_file(path, MOST_ACTIVE_BYTES)


def _files(home: Home, *, with_launches: bool) -> tuple[list[Source], list[str]]:
    """The files to copy, and the entries left out: links, sockets, folders in launches, unusual names."""
    places = [(SELFTEST, home.selftest), (TRUSTED_KEYS, home.root / TRUSTED_KEYS)]
    if with_launches:
        places += [(f"{LAUNCHES}/{name}", home.launch(name)) for name in _folders(home.launches)]
    files, left_out = [], []
    for prefix, folder in places:
        for name in _names(folder):
            path, member = folder / name, f"{prefix}/{name}"
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue  # replaced or deleted just now
            if stat.S_ISREG(found.st_mode) and is_allowed(member):
                files.append(Source(member, path, found.st_size))
            elif not name.startswith("."):  # partial files have a name with a dot
                left_out.append(member)
    return files, left_out


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _folders(folder: Path) -> list[str]:
    found = [name for name in _names(folder) if not name.startswith(".")]
    return [name for name in found if (folder / name).is_dir() and not (folder / name).is_symlink()]
