"""Copies the rows of an untrusted database into one that we create: whatever else the file contains (triggers, views,
virtual tables, damage) is left behind, and every row must satisfy our constraints."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from appliance.launches.folder import LAUNCH_ID
from console.backups.archive_format import LATEST
from console.backups.errors import BackupError
from console.backups.snapshot import NOT_KEPT
from console.db import schema
from migrations import HEAD, REVISIONS

OUR_OWN = (*NOT_KEPT, "alembic_version")

LONGEST_VALUE = 64 << 20
"""Bytes of one value, and of the result of any expression in the untrusted file."""
READS_WITHIN_S = 600.0
INSTRUCTIONS = 100_000
"""How many SQLite instructions pass between checks of that time limit."""
OF_A_SCHEMA = 32

# The storage classes allowed for a declared type; SQLite itself accepts any value in any column.
TYPES = {
    "INTEGER": ("integer",),
    "BOOLEAN": ("integer",),
    "DOUBLE": ("real", "integer"),
    "VARCHAR": ("text",),
    "TEXT": ("text",),
}


def revision_of(path: Path, name: str) -> str:
    """The schema revision recorded in a database. Raises BackupError if it is not an Ingot database, or a newer one."""
    query = f"SELECT substr(version_num, 1, {OF_A_SCHEMA}) FROM alembic_version LIMIT 1"
    try:
        with closing(sqlite3.connect(_unchanging(path), uri=True)) as connection:
            bound(connection)
            plain = connection.execute(
                "SELECT 1 FROM pragma_table_list AS tables, pragma_table_xinfo('alembic_version') AS columns "
                "WHERE tables.schema = 'main' AND tables.name = 'alembic_version' AND tables.type = 'table' "
                "AND columns.name = 'version_num' AND columns.hidden = 0"
            ).fetchone()
            found = connection.execute(query).fetchone() if plain else None
    except sqlite3.Error as error:
        raise _unusable(name, str(error)) from error
    if found is None or not isinstance(found[0], str):
        raise _unusable(name, "it is not an Ingot database", code="not-a-database")
    if found[0] not in REVISIONS:
        raise BackupError(
            "newer-schema",
            f"{name} has database schema {found[0]!r}. This version of Ingot supports schemas up to {HEAD}.",
            "Install the version of Ingot that created it, or a newer one, and restore it there.",
        )
    return found[0]


def bound(connection: sqlite3.Connection) -> None:
    """A file may contain expressions that SQLite evaluates while reading it: limit their memory and time."""
    until = time.monotonic() + READS_WITHIN_S
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
    connection.set_progress_handler(lambda: time.monotonic() > until, INSTRUCTIONS)


def _unchanging(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"


def adopt(source: Path, target: Path, launches: Path, name: str) -> str:
    """Create `target`, at this version's schema, from the rows of `source`; returns the schema that `source` had. The
    launches' rows then refer to folders in `launches`. Errors call the source `name`."""
    revision = revision_of(source, name)
    schema.upgrade(target, revision)
    try:
        with closing(sqlite3.connect(target, isolation_level=None, uri=True)) as connection:
            bound(connection)
            connection.execute("PRAGMA cell_size_check = ON")
            connection.execute("ATTACH ? AS source", (_unchanging(source),))
            connection.execute("BEGIN")
            _copy(connection, name)
            _check(connection, name)
            _settle(connection, launches)
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise _unusable(name, str(error)) from error
    if revision != HEAD:
        schema.upgrade(target)
    return revision


def _tables(connection: sqlite3.Connection) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Our tables, each with its columns and their types."""
    query = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    for (table,) in connection.execute(query).fetchall():
        if table not in OUR_OWN:
            yield table, [(row[1], row[2].upper()) for row in connection.execute(f"PRAGMA main.table_info({table})")]


def _copy(connection: sqlite3.Connection, name: str) -> None:
    (verdict,) = connection.execute("PRAGMA source.integrity_check(1)").fetchone()
    if verdict != "ok":
        raise _unusable(name, verdict)
    for table, columns in _tables(connection):
        kinds = {row[2] for row in connection.execute(f"PRAGMA source.table_list({table})") if row[0] == "source"}
        theirs = {row[1] for row in connection.execute(f"PRAGMA source.table_xinfo({table})") if not row[6]}
        ours = [column for column, _ in columns]
        if kinds != {"table"} or not theirs.issuperset(ours):
            raise _unusable(name, f"its table {table} does not match the schema")
        # Table and column names come from our own schema, never from the file.
        listed = ", ".join(ours)
        connection.execute(f"INSERT INTO main.{table} ({listed}) SELECT {listed} FROM source.{table}")
    # Do not reuse the numbers of deleted launches.
    connection.execute("DELETE FROM main.sqlite_sequence")
    connection.execute("INSERT INTO main.sqlite_sequence SELECT name, CAST(seq AS INTEGER) FROM source.sqlite_sequence")


def _check(connection: sqlite3.Connection, name: str) -> None:
    """What the constraints do not cover, but would make a page fail."""
    for table, columns in _tables(connection):
        for column, declared in columns:
            if declared == "JSON":
                wrong = f"NOT json_valid({column}) OR json_type({column}) NOT IN ('object', 'array')"
            else:
                allowed = ", ".join(f"'{kind}'" for kind in TYPES[declared])
                wrong = f"typeof({column}) NOT IN ({allowed}, 'null')"
                if declared == "DOUBLE":
                    wrong += f" OR abs({column}) >= {LATEST}"
            if connection.execute(f"SELECT 1 FROM main.{table} WHERE {wrong} LIMIT 1").fetchone():
                raise _unusable(name, f"column {column} of table {table} has a value that is not {declared}")
    broken = connection.execute("PRAGMA main.foreign_key_check").fetchone()
    if broken is not None:
        raise _unusable(name, f"a row in table {broken[0]} refers to a missing row in {broken[2]}")
    for (launch_id,) in connection.execute("SELECT launch_id FROM main.launches"):
        if not LAUNCH_ID.fullmatch(launch_id):
            raise _unusable(name, f"{launch_id[:40]!r} is not a valid launch id")


def _settle(connection: sqlite3.Connection, launches: Path) -> None:
    """Point the launches at their new folders; the active revision has not been launched here yet."""
    connection.execute("UPDATE main.launches SET path = ? || launch_id", (f"{launches}/",))
    connection.execute("UPDATE main.active_revision SET launch = ''")


def _unusable(name: str, why: str, code: str = "damaged") -> BackupError:
    return BackupError(code, f"The database in {name} cannot be used: {why}.", "Restore another backup.")
