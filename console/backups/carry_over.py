"""What a restore takes over from the present state, so that it lets in nobody who is kept out now: revoked keys, the
switch that requires a key, passwords, and who is signed in."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from appliance.home import Home
from appliance.key_file import KeyFile
from console.access.unattended import KEY_NAME
from console.db import schema
from migrations import HEAD, REVISIONS

FROM_DATABASE: Final = (
    # The same account, by name and moment of creation, keeps the password that it has now.
    (
        "UPDATE main.users SET password_hash = now.password_hash FROM live.users AS now "
        "WHERE now.name = users.name AND now.created = users.created"
    ),
    (
        "INSERT INTO main.sessions (token_sha256, user_id, created, seen, expires, address, agent) "
        "SELECT open.token_sha256, ours.id, open.created, open.seen, open.expires, open.address, open.agent "
        "FROM live.sessions AS open JOIN live.users AS theirs ON theirs.id = open.user_id "
        "JOIN main.users AS ours ON ours.name = theirs.name AND ours.created = theirs.created"
    ),
    (
        "INSERT INTO main.api_access (id, key_required) SELECT 1, 1 FROM live.api_access WHERE key_required "
        "ON CONFLICT (id) DO UPDATE SET key_required = 1"
    ),
    (
        "INSERT OR IGNORE INTO main.revoked_keys (sha256, name, revoked) "
        "SELECT sha256, name, revoked FROM live.revoked_keys"
    ),
    # The key of a file is this installation's: an earlier one was replaced without being revoked.
    "DELETE FROM main.api_keys WHERE name = :file_key AND EXISTS (SELECT 1 FROM live.api_keys WHERE name = :file_key)",
    (
        "INSERT OR REPLACE INTO main.api_keys (id, name, hint, sha256, created, author) "
        "SELECT id, name, hint, sha256, created, author FROM live.api_keys WHERE name = :file_key"
    ),
)


def carry_over(home: Home, staged: Path) -> list[str]:
    """Bring what the staged database says of access up to the present; the names of the keys that it held and that
    are no longer accepted. Of a present database that is damaged, or a newer version's, `keys.json` is all that is
    known."""
    present = _present(home, staged.with_name("present.db"))
    with closing(sqlite3.connect(staged, isolation_level=None)) as connection:
        if present is not None:
            connection.execute("ATTACH ? AS live", (str(present),))
        connection.execute("BEGIN")
        if present is not None:
            for statement in FROM_DATABASE:
                connection.execute(statement, {"file_key": KEY_NAME})
        elif (file := _key_file(home)) is not None:
            _take_from_file(connection, file)
        revoked = "FROM main.api_keys WHERE sha256 IN (SELECT sha256 FROM main.revoked_keys)"
        names = [name for (name,) in connection.execute(f"SELECT name {revoked} ORDER BY name")]
        connection.execute(f"DELETE {revoked}")
        connection.execute("COMMIT")
    return names


def _present(home: Home, copy: Path) -> Path | None:
    """The present database at this version's schema: the one in use, or a copy of an older one, upgraded."""
    try:
        revision = schema.current(home.database)
        if revision == HEAD:
            return home.database
        if revision not in REVISIONS:
            return None
        schema.copy(home.database, copy)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        return None
    schema.upgrade(copy)
    return copy


def _key_file(home: Home) -> KeyFile | None:
    try:
        return msgspec.json.decode(home.api_keys.read_bytes(), type=KeyFile)
    except (OSError, msgspec.DecodeError):
        return None


def _take_from_file(connection: sqlite3.Connection, file: KeyFile) -> None:
    """A key that the file does not accept counts as revoked, like those that it lists."""
    if file.is_required:
        connection.execute("INSERT OR REPLACE INTO api_access (id, key_required) VALUES (1, 1)")
    connection.execute(
        "INSERT OR IGNORE INTO revoked_keys (sha256, name, revoked) "
        "SELECT sha256, name, unixepoch() FROM api_keys WHERE sha256 NOT IN (SELECT value FROM json_each(?))",
        (msgspec.json.encode([key.sha256 for key in file.keys]).decode(),),
    )
    connection.execute(
        "INSERT OR IGNORE INTO revoked_keys (sha256, name, revoked) SELECT value, '', unixepoch() FROM json_each(?)",
        (msgspec.json.encode(file.revoked).decode(),),
    )
