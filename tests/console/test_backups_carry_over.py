"""A restore lets nobody in who is kept out at that moment."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from appliance.home import Home
from console.access.unattended import KEY_NAME
from console.db import schema
from tests.console.backup_states import back_up, bring_back, database, fill, rows


@pytest.fixture
def home(tmp_path, fresh_database):
    return fill(Home.at(tmp_path / "home"), fresh_database)


def change(home: Home, *statements: str) -> None:
    with closing(database(home)) as connection:
        for statement in statements:
            connection.execute(statement)


REVOKE = ("DELETE FROM api_keys WHERE id = 'k'", "INSERT INTO revoked_keys VALUES ('hash-k', 'k', 7)")


def key_file(home: Home) -> tuple[bool, set[str]]:
    """(whether the front door requires a key, the hashes that it accepts)."""
    file = json.loads(home.api_keys.read_bytes())
    return file["required"], {key["sha256"] for key in file["keys"]}


def test_a_revoked_key_stays_revoked(home):
    """One that was revoked after the backup; the result names it, and a file that holds it later changes nothing."""
    backup = back_up(home)
    change(home, *REVOKE)
    assert bring_back(home, backup).revoked == ["k"]
    assert rows(home)["api_keys"] == []
    assert rows(home)["revoked_keys"] == [("hash-k", "k", 7.0)]
    assert key_file(home)[1] == set()


def test_other_keys_of_the_backup_come_back(home):
    """A restore still brings the backup's keys, and the revocations that it knew."""
    change(home, "INSERT INTO revoked_keys VALUES ('hash-older', 'older', 6)")
    backup = back_up(home)
    change(home, "DELETE FROM api_keys", "DELETE FROM revoked_keys")
    assert bring_back(home, backup).revoked == []
    assert key_file(home)[1] == {"hash-k"}
    assert rows(home)["revoked_keys"] == [("hash-older", "older", 6.0)]


@pytest.mark.parametrize(
    ("then", "now", "required"), [(None, 1, True), (0, 1, True), (1, 0, True), (1, None, True), (0, 0, False)]
)
def test_a_key_is_required_if_it_was_before_or_after(home, then, now, required):
    """Of the backup and the present state, the stricter one stands."""
    if then is not None:
        change(home, f"INSERT INTO api_access VALUES (1, {then})")
    backup = back_up(home)
    change(home, "DELETE FROM api_access")
    if now is not None:
        change(home, f"INSERT INTO api_access VALUES (1, {now})")
    bring_back(home, backup)
    assert key_file(home)[0] is required


def test_a_password_that_was_changed_stays_changed(home):
    """Of the same account; one that was created anew since is the backup's."""
    backup = back_up(home)
    change(home, "UPDATE users SET password_hash = 'newer'")
    bring_back(home, backup)
    assert [row[2] for row in rows(home)["users"]] == ["newer"]
    change(home, "UPDATE users SET created = 99")
    bring_back(home, backup)
    assert [row[2] for row in rows(home)["users"]] == ["hash"]


def test_the_key_of_a_file_is_the_present_one(home):
    """The one that the file held when the backup was made was replaced, and is accepted no more."""
    put_file_key = f"INSERT INTO api_keys VALUES ('f', '{KEY_NAME}', 'ingot-f', 'hash-{{}}', 1, 'Ingot')"
    change(home, put_file_key.format("first"))
    backup = back_up(home)
    change(home, "DELETE FROM api_keys WHERE id = 'f'", put_file_key.format("second"))
    bring_back(home, backup)
    assert key_file(home)[1] == {"hash-k", "hash-second"}


def test_a_present_database_of_an_older_version(home, tmp_path):
    """A restore before the first start of a newer version: what the older one required is required still."""
    change(home, "DELETE FROM api_keys")
    backup = back_up(home)
    home.database.unlink()
    schema.upgrade(home.database, "0002")
    change(home, "INSERT INTO api_keys VALUES ('o', 'o', 'ingot-o', 'hash-o', 1, 'me')")
    bring_back(home, backup)
    assert key_file(home) == (True, set())


@pytest.mark.parametrize(
    ("file", "required", "accepted", "revoked"),
    [
        ({"keys": [{"id": "k", "name": "k", "sha256": "hash-k"}]}, True, {"hash-k"}, set()),
        ({"keys": []}, False, set(), {"hash-k"}),
        ({"keys": [], "required": False, "revoked": ["hash-r"]}, False, set(), {"hash-k", "hash-r"}),
    ],
    ids=["no-switch", "no-switch-and-no-key", "revoked"],
)
def test_what_keys_json_says_without_a_database(home, file, required, accepted, revoked):
    """One from before there was a switch requires a key if it has one, as the front door reads it."""
    change(home, "INSERT INTO api_access VALUES (1, 0)")
    backup = back_up(home)
    home.api_keys.write_text(json.dumps(file))
    home.database.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    bring_back(home, backup)
    assert key_file(home) == (required, accepted)
    assert {row[0] for row in rows(home)["revoked_keys"]} == revoked


@pytest.mark.parametrize("state", ["damaged", "newer"])
def test_a_present_database_that_says_nothing(home, state):
    """`keys.json` is believed: it requires a key, and one that it does not accept was revoked."""
    change(home, "INSERT INTO api_keys VALUES ('l', 'l', 'ingot-l', 'hash-l', 1, 'me')")
    backup = back_up(home)
    home.api_keys.write_text(json.dumps({"required": True, "keys": [{"id": "l", "name": "l", "sha256": "hash-l"}]}))
    if state == "damaged":
        home.database.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    else:
        with closing(sqlite3.connect(home.database)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = '9999'")
    assert bring_back(home, backup).revoked == ["k"]
    assert key_file(home) == (True, {"hash-l"})
