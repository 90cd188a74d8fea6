"""What the state will contain after a restore, as people want to know it before: with the keys that will be accepted,
and without those, and the accounts, that will be gone."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import msgspec

from appliance.home import Home
from console.backups import reading
from console.backups.adopt import adopt
from console.backups.archive_format import DATABASE, SQLITE_MAGIC, Contents
from console.backups.carry_over import carry_over
from console.backups.disk_space import DiskSpace
from console.backups.restore_steps import staging
from console.backups.snapshot import accepted_keys, contents_of, present


class AfterRestore(msgspec.Struct, frozen=True, kw_only=True):
    """`lost_accounts` and `lost_keys` name what is here now and will not be; `key_required`: the API will refuse
    requests without a key."""

    contents: Contents
    lost_accounts: list[str]
    lost_keys: list[str]
    key_required: bool

    @property
    def no_key_left(self) -> bool:
        """Whether keys are accepted now and none will be."""
        return bool(self.lost_keys) and not self.contents.api_keys


def foresee(home: Home, staged: Path, trusted_keys: list[str] | None) -> AfterRestore:
    """From a checked database, which is left as it is. `trusted_keys` are the backup's; None: those here stay. Raises
    sqlite3.Error."""
    now, keys = _present(home)
    copy = staged.with_name("after.db")
    shutil.copyfile(staged, copy)
    carry_over(home, copy)
    if trusted_keys is None:
        trusted_keys = now.trusted_keys
    contents = contents_of(copy, launches=now.launches, trusted_keys=trusted_keys)
    accepted = accepted_keys(copy)
    with closing(sqlite3.connect(copy)) as connection:
        required = connection.execute("SELECT 1 FROM api_access WHERE key_required").fetchone()
    return AfterRestore(
        contents=contents,
        lost_accounts=sorted({*now.accounts} - {*contents.accounts}),
        lost_keys=sorted(name for digest, name in keys.items() if digest not in accepted),
        key_required=required is not None,
    )


def preview(home: Home, path: Path) -> AfterRestore:
    """Reads no more of a backup than its database. Raises BackupError."""
    with staging(home) as stage, path.open("rb") as raw:
        theirs, staged = stage / "theirs.db", stage / DATABASE
        with theirs.open("xb") as file:
            trusted_keys = _database(raw, path, _writing(file, DiskSpace(stage, "The comparison")))
        adopt(theirs, staged, home.launches, path.name)
        return foresee(home, staged, trusted_keys)


def _present(home: Home) -> tuple[Contents, dict[str, str]]:
    """What is here, and the keys that are accepted: nothing where there is no readable database."""
    if not home.database.is_file():
        return Contents(), {}
    try:
        return present(home), accepted_keys(home.database)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        return Contents(), {}


def _database(raw: IO[bytes], path: Path, write: Callable[[bytes], object]) -> list[str] | None:
    """The trusted keys of the backup; None for a copy of the database alone, which has none."""
    is_database = raw.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    raw.seek(0)
    if not is_database:
        return reading.read_database(raw, path.name, write).contents.trusted_keys
    while chunk := raw.read(1 << 20):
        write(chunk)
    return None


def _writing(file: IO[bytes], room: DiskSpace) -> Callable[[bytes], object]:
    def write(chunk: bytes) -> None:
        room.took(len(chunk))
        file.write(chunk)

    return write


def comparison(now: Contents, then: AfterRestore) -> list[tuple[str, Any, Any]]:
    """What a restore replaces: (what, now, afterwards)."""
    after = then.contents
    names = ", ".join
    return [
        ("Accounts", names(now.accounts) or "none", names(after.accounts) or "none"),
        ("Active profile", now.active or "none", after.active or "none"),
        ("Profiles", now.profiles, after.profiles),
        ("Revisions", now.revisions, after.revisions),
        ("API keys", now.api_keys, after.api_keys),
        ("Trusted keys", names(now.trusted_keys) or "none", names(after.trusted_keys) or "none"),
    ]
