"""API keys: created, shown until dismissed, required or not, written where the front door reads them, revoked."""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
from contextlib import closing

import msgspec
import pytest
from sqlalchemy import select

from appliance.front_door_token import digest
from console.access import keys
from console.access.new_keys import SHOWN_FOR_S, NewKeys
from console.access.sessions import COOKIE, hashed
from console.access.token import ensure_console_token, program_header, token_header
from console.db import schema
from console.db.models import ApiKey, SignIn


def _file(console) -> list[dict]:
    return _access(console)["keys"]


def _access(console) -> dict:
    return msgspec.json.decode(console.home.api_keys.read_bytes())


def _required(console) -> tuple[bool, int]:
    """Whether the front door requires a key, and how many it accepts."""
    file = _access(console)
    return file["required"], len(file["keys"])


def _shown(page: str) -> list[str]:
    """The keys whose text a page shows."""
    return re.findall(r'data-copy="(ingot-[\w-]+)"', page)


async def _create(client, name: str) -> str:
    answer = await client.post("/access/keys", data={"name": name}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/access")
    return _shown((await client.get("/access")).text)[-1]


async def test_a_new_key_is_shown_until_dismissed_and_kept_as_a_hash(client, console):
    """A reload shows it again, another browser never does, and no address has it."""
    text = await _create(client, "laptop")
    assert _shown((await client.get("/access")).text) == [text]
    (entry,) = _file(console)
    assert entry["name"] == "laptop"
    assert entry["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert console.home.api_keys.stat().st_mode & 0o077 == 0
    async with console.database.session() as session:
        row = (await session.scalars(select(ApiKey))).one()
        session.add(SignIn(token_sha256=hashed("other"), user_id=1, expires=4e9))
    assert text.startswith(row.hint)
    assert len(row.hint) < 16
    assert row.author == "admin"
    client.cookies.set(COOKIE, "other")
    assert _shown((await client.get("/access")).text) == []
    client.cookies.set(COOKIE, "test-token")
    assert _shown((await client.post(f"/access/keys/{entry['id']}/dismiss")).text) == []
    assert len(_file(console)) == 1


async def test_signing_out_and_revoking_end_the_showing(client, console):
    """What was not dismissed is not left for whoever comes next."""
    await _create(client, "one")
    await client.post(f"/access/keys/{_file(console)[0]['id']}/revoke")
    assert _shown((await client.get("/access")).text) == []
    new_keys = client.app.dependencies["new_keys"].dependency()
    await _create(client, "two")
    await client.post("/sign-out")
    assert new_keys.of(1) == []


def test_a_new_key_is_shown_for_ten_minutes_at_most():
    """Then it is in no memory any more."""
    now = [0.0]
    new_keys = NewKeys(clock=lambda: now[0])
    new_keys.add(1, "a", "laptop", "ingot-x")
    now[0] = SHOWN_FOR_S - 1
    assert [key.text for key in new_keys.of(1)] == ["ingot-x"]
    now[0] = SHOWN_FOR_S
    assert new_keys.of(2) == []
    assert new_keys._shown == {}


async def test_the_front_door_takes_it(client, console):
    """What the console writes is what the front door reads."""
    from appliance.serving.access import Access

    text = await _create(client, "laptop")
    door = Access(console.home, "127.0.0.1", {})
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert [*door._known_keys().ids] == [digest]
    assert not door._known_keys().required
    await client.post("/access/require-key")
    await client.post(f"/access/keys/{_file(console)[0]['id']}/revoke")
    assert door._known_keys().ids == {}
    assert door._known_keys().revoked == {digest}
    assert door._known_keys().required


def _says_required(page: str) -> str:
    return re.search(r'data-key-required="(\w+)"', page)[1]


async def test_only_the_switch_changes_whether_a_key_is_required(client, console):
    """Neither the first key nor the last one's end; the page asks before it is turned on or off, with a button that has
    a question."""
    await _create(client, "laptop")
    assert not _access(console)["required"]
    page = (await client.get("/access")).text
    assert re.search(r'action="/access/require-key" data-confirm="[^"]', page)
    page = (await client.post("/access/require-key")).text
    assert _says_required(page) == "yes"
    assert _access(console)["required"]
    assert re.search(r'action="/access/stop-requiring-key" data-confirm="[^"]', page)
    await client.post(f"/access/keys/{_file(console)[0]['id']}/revoke")
    assert _required(console) == (True, 0)
    assert _says_required((await client.post("/access/stop-requiring-key")).text) == "no"
    assert _required(console) == (False, 0)


async def test_the_switch_survives_a_start(client, console):
    """It is in the database; the file follows."""
    await client.post("/access/require-key")
    console.home.api_keys.unlink()
    await keys.restore_keys(console.home, console.database)
    assert _required(console) == (True, 0)


@pytest.mark.parametrize("number_of_keys", [0, 1])
def test_installations_that_had_keys_go_on_requiring_one(tmp_path, number_of_keys):
    """The first key used to turn it on; without keys it stays off."""
    database = tmp_path / "ingot.db"
    schema.upgrade(database, "0002")
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        for number in range(number_of_keys):
            connection.execute("INSERT INTO api_keys VALUES (?, 'laptop', 'ingot-', 'x', 1.0, 'admin')", (str(number),))
    schema.upgrade(database)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT key_required FROM api_access").fetchall() == [(1,)] * number_of_keys


async def test_revoking_takes_one_away(client, console):
    """The others go on; revoking twice is told."""
    await _create(client, "one")
    await _create(client, "two")
    first = next(entry for entry in _file(console) if entry["name"] == "one")
    assert (await client.post(f"/access/keys/{first['id']}/revoke")).status_code == 200
    assert [entry["name"] for entry in _file(console)] == ["two"]
    assert (await client.post(f"/access/keys/{first['id']}/revoke")).status_code == 404


@pytest.mark.parametrize(("name", "status"), [("", 422), ("x" * 65, 422), ("a\nb", 422), ("taken", 409)])
async def test_names_that_cannot_be(client, console, name, status):
    """The refusal stands at the field, and nothing is made."""
    await _create(client, "taken")
    answer = await client.post("/access/keys", data={"name": name})
    assert answer.status_code == status
    assert 'aria-invalid="true"' in answer.text
    assert len(_file(console)) == 1


async def test_a_file_that_cannot_be_written_changes_nothing(client, console):
    """Rows and file stay together: no key that is in one and not in the other."""
    shutil.rmtree(console.home.active)
    answer = await client.post("/access/keys", data={"name": "laptop"})
    assert answer.status_code == 503
    assert str(console.home.active) in answer.text
    async with console.database.session() as session:
        assert (await session.scalars(select(ApiKey))).all() == []


async def test_a_lost_file_is_written_again(client, console):
    """At each start the file is made to say what the database says."""
    await _create(client, "laptop")
    console.home.api_keys.unlink()
    await keys.restore_keys(console.home, console.database)
    assert [entry["name"] for entry in _file(console)] == ["laptop"]


def test_the_consoles_token_is_made_once(home):
    """It is this folder's secret, and stays the same."""
    assert token_header(home) == {}
    ensure_console_token(home)
    first = token_header(home)
    ensure_console_token(home)
    assert token_header(home) == first
    assert len(first["Authorization"]) > 40
    assert home.console_token.stat().st_mode & 0o077 == 0


def test_the_front_door_is_shown_nothing_that_opens_the_console(home):
    """It knows the console by a digest, and what it is shown is not the console's token. One that it could read, of an
    earlier version, is gone."""
    earlier = home.active / "console-token"
    earlier.write_text("readable")
    ensure_console_token(home)
    assert not earlier.exists()
    shown = token_header(home)["Authorization"].removeprefix("Bearer ")
    secret = home.console_token.read_text()
    assert shown != secret
    assert program_header(home) == {"Authorization": f"Bearer {secret}"}
    seen = b"".join(path.read_bytes() for path in home.active.iterdir())
    assert secret.encode() not in seen
    assert shown.encode() not in seen
    assert home.front_door_digest.read_text() == digest(shown)


async def test_the_console_does_not_open_for_what_the_front_door_was_shown(visitor, home):
    """An engine that is broken into has seen it."""
    ensure_console_token(home)
    visitor.cookies.clear()
    visitor.headers["accept"] = "application/json"
    assert (await visitor.post("/profiles/-/roll-back", headers=program_header(home))).status_code != 401
    assert (await visitor.post("/profiles/-/roll-back", headers=token_header(home))).status_code == 401


@pytest.mark.parametrize(
    ("keys_made", "required", "state"),
    [(0, False, "open"), (1, False, "open"), (1, True, "keyed"), (0, True, "closed")],
)
async def test_the_dashboard_follows_the_switch(client, console, keys_made, required, state):
    """Not the number of keys: a required key may be missing, and one that exists need not be required."""
    for number in range(max(keys_made, required)):
        await _create(client, f"key {number}")
    if required:
        await client.post("/access/require-key")
    if required and not keys_made:
        row = re.search(r'action="(/access/keys/[^"]+/revoke)"', (await client.get("/access")).text)
        await client.post(row[1])
    page = (await client.get("/")).text
    assert re.search(r'data-api="(\w+)"', page)[1] == state
    assert ("INGOT_API_KEY" in page) is required
