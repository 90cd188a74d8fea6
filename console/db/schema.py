"""Brings the database file to the code's schema: nothing to do at head, a backup before an upgrade, and a refusal if a
newer Ingot wrote the file. Alembic is imported only when there is something to migrate."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from importlib.resources import files
from pathlib import Path

from migrations import HEAD, REVISIONS


class SchemaError(Exception):
    """The database cannot be used by this version; the text says what to do."""


def migrate(path: Path, backups: Path) -> Path | None:
    """Upgrade the file at `path` (created if missing) to `HEAD`; returns the backup made before, if any."""
    present = current(path)
    if present == HEAD:
        return None
    if present is not None and present not in REVISIONS:
        raise SchemaError(
            f"The database {path} has schema {present!r}, written by a newer Ingot. "
            f"Start that version, or restore a backup for this one from {backups}."
        )
    backup = None
    if present is not None:
        backup = backups / f"before-{HEAD}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.db"
        copy(path, backup)
    upgrade(path)
    return backup


def current(path: Path) -> str | None:
    """The schema revision that the file says it has; None for a missing or empty file."""
    if not path.exists():
        return None
    with closing(sqlite3.connect(path)) as connection:
        has_version = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
        if connection.execute(has_version).fetchone() is None:
            return None
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return row[0] if row else None


def copy(path: Path, target: Path) -> None:
    """A consistent copy of a database that may be in use; complete or absent."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("VACUUM INTO ?", (str(partial),))
        partial.chmod(0o600)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)  # a partial file would keep a full disk full


def upgrade(path: Path, revision: str = HEAD) -> None:
    """Bring the file at `path` (made if missing) to a schema revision, without a copy of it as it was."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.attributes["database"] = path
    command.upgrade(config, revision)
