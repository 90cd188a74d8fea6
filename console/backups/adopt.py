"""Takes the rows of a database that may come from anywhere into a database of our own making: whatever else the file
holds (triggers, views, virtual tables, damage) stays behind, and every row passes our own constraints."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from appliance.launches.folder import LAUNCH_ID
from console.backups.format import LATEST, BackupError
from console.backups.snapshot import NOT_KEPT
from console.db import schema
from migrations import HEAD, REVISIONS

OUR_OWN = (*NOT_KEPT, "alembic_version")

LONGEST_VALUE = 64 << 20
"""Bytes of one value, and of whatever an expression in a stranger's file makes up while it is read."""
READS_WITHIN_S = 600.0
INSTRUCTIONS = 100_000
"""SQLite is asked so often, in its own instructions, whether that time is over."""
OF_A_SCHEMA = 32

# What the values of a declared type may be; SQLite itself takes anything anywhere.
TYPES = {
    "INTEGER": ("integer",),
    "BOOLEAN": ("integer",),
    "DOUBLE": ("real", "integer"),
    "VARCHAR": ("text",),
    "TEXT": ("text",),
}


def revision_of(path: Path, name: str) -> str:
    """The schema that a database says it has. Raises BackupError where it is none of Ingot's, or a newer one's."""
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
        raise _damaged(name, str(error)) from error
    if found is None or not isinstance(found[0], str):
        raise _damaged(name, "it is no database of Ingot's")
    if found[0] not in REVISIONS:
        raise BackupError(
            f"The database {name} has the schema {found[0]!r}, and this version knows up to {HEAD}.",
            "Install the version of Ingot that made it, or a newer one, and restore it there.",
        )
    return found[0]


def bound(connection: sqlite3.Connection) -> None:
    """A file may hold expressions that SQLite runs as it reads it: none of them takes all memory, or for ever."""
    until = time.monotonic() + READS_WITHIN_S
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
    connection.set_progress_handler(lambda: time.monotonic() > until, INSTRUCTIONS)


def _unchanging(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"


def adopt(source: Path, target: Path, launches: Path, name: str) -> str:
    """Make `target`, at this version's schema, from the rows of `source`; the answer is the schema that those had. The
    rows of launches are of folders in `launches` from now on. `name` is what the source is called in errors."""
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
        raise _damaged(name, str(error)) from error
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
        raise _damaged(name, verdict)
    for table, columns in _tables(connection):
        kinds = {row[2] for row in connection.execute(f"PRAGMA source.table_list({table})") if row[0] == "source"}
        theirs = {row[1] for row in connection.execute(f"PRAGMA source.table_xinfo({table})") if not row[6]}
        ours = [column for column, _ in columns]
        if kinds != {"table"} or not theirs.issuperset(ours):
            raise _damaged(name, f"its table {table} is not as the schema has it")
        # Parts of these names never come from the file: the tables and columns are those of our own schema.
        listed = ", ".join(ours)
        connection.execute(f"INSERT INTO main.{table} ({listed}) SELECT {listed} FROM source.{table}")
    # Numbers of launches that were deleted are not given again.
    connection.execute("DELETE FROM main.sqlite_sequence")
    connection.execute("INSERT INTO main.sqlite_sequence SELECT name, CAST(seq AS INTEGER) FROM source.sqlite_sequence")


def _check(connection: sqlite3.Connection, name: str) -> None:
    """What the constraints do not say, and a page would fail over."""
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
                raise _damaged(name, f"the column {column} of its table {table} has a value that is no {declared}")
    broken = connection.execute("PRAGMA main.foreign_key_check").fetchone()
    if broken is not None:
        raise _damaged(name, f"a row of its table {broken[0]} refers to one of {broken[2]} that is not there")
    for (launch_id,) in connection.execute("SELECT launch_id FROM main.launches"):
        if not LAUNCH_ID.fullmatch(launch_id):
            raise _damaged(name, f"{launch_id[:40]!r} cannot be a launch's id")


def _settle(connection: sqlite3.Connection, launches: Path) -> None:
    """The launches lie here now, and the active revision waits for a launch of its own."""
    connection.execute("UPDATE main.launches SET path = ? || launch_id", (f"{launches}/",))
    connection.execute("UPDATE main.active_revision SET launch = ''")


def _damaged(name: str, why: str) -> BackupError:
    return BackupError(f"The database {name} cannot be used: {why}.", "Restore another backup.")
