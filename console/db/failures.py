"""What a database failure means, for pages and for commands."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple, TypeAlias

from sqlalchemy.exc import DBAPIError

DatabaseError: TypeAlias = DBAPIError | sqlite3.Error
DATABASE_ERRORS = (DBAPIError, sqlite3.Error)
"""Through SQLAlchemy, and from SQLite itself where schema and backups use it directly."""


class Failure(NamedTuple):
    """`status` is the HTTP status that fits."""

    status: int
    message: str
    remedy: str


def explain(error: DatabaseError, path: Path) -> Failure | None:
    """None for an error that the disk does not explain: a bug."""
    said = sqlite_says(error)
    text = said.lower()
    if "readonly" in text:
        return Failure(
            503,
            f"The database {path} can be read but not written. Nothing was changed, and the engine is not affected.",
            f"Make {path} and its folder writable for the user that runs the console, then try again.",
        )
    if "disk is full" in text or "full" in text.split():
        return Failure(
            507,
            f"The disk that holds {path} is full. Nothing was changed, and the engine is not affected.",
            "Free some space, for example by deleting old launches or backups, then try again.",
        )
    if "disk i/o error" in text or "unable to open" in text or "malformed" in text or "not a database" in text:
        return Failure(
            503,
            f"The database {path} could not be read or written: {said}. Nothing was changed.",
            f"Check the disk and the permissions of {path.parent}. If the database is damaged, restore a backup.",
        )
    if "locked" in text:
        return Failure(
            503,
            "The database was busy for longer than five seconds. Nothing was changed.",
            "Try again. If it keeps happening, another program holds a write lock on ingot.db: end that program.",
        )
    return None


def sqlite_says(error: DatabaseError) -> str:
    """Without the statement and its values, which SQLAlchemy adds."""
    return str(error.orig if isinstance(error, DBAPIError) else error)
