"""API keys: made, shown once, written where the front door reads them, revoked."""

from __future__ import annotations

import hashlib
import re
import shutil

import msgspec
import pytest
from sqlalchemy import select

from appliance.front_door_token import digest
from console.access import keys
from console.access.token import ensure_console_token, program_header, token_header
from console.db.models import ApiKey


def _file(console) -> list[dict]:
    return msgspec.json.decode(console.home.api_keys.read_bytes())["keys"]


async def _make(client, name: str) -> str:
    answer = await client.post("/access/keys", data={"name": name})
    assert answer.status_code == 201
    return re.search(r'data-copy="(ingot-[\w-]+)"', answer.text)[1]


async def test_a_key_is_shown_once_and_kept_as_a_hash(client, console):
    """The page after making it is the only place that ever has it."""
    text = await _make(client, "laptop")
    assert text not in (await client.get("/access")).text
    (entry,) = _file(console)
    assert entry["name"] == "laptop"
    assert entry["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert console.home.api_keys.stat().st_mode & 0o077 == 0
    async with console.database.session() as session:
        row = (await session.scalars(select(ApiKey))).one()
    assert text.startswith(row.hint)
    assert len(row.hint) < 16
    assert row.author == "admin"


async def test_the_front_door_takes_it(client, console):
    """What the console writes is what the front door reads."""
    from appliance.serving.access import Access

    text = await _make(client, "laptop")
    door = Access(console.home)
    assert hashlib.sha256(text.encode()).hexdigest() in door._ids()
    await client.post(f"/access/keys/{_file(console)[0]['id']}/revoke")
    assert door._ids() == {}


async def test_revoking_takes_one_away(client, console):
    """The others go on; revoking twice is told."""
    await _make(client, "one")
    await _make(client, "two")
    first = next(entry for entry in _file(console) if entry["name"] == "one")
    assert (await client.post(f"/access/keys/{first['id']}/revoke")).status_code == 200
    assert [entry["name"] for entry in _file(console)] == ["two"]
    assert (await client.post(f"/access/keys/{first['id']}/revoke")).status_code == 404


@pytest.mark.parametrize(("name", "status"), [("", 422), ("x" * 65, 422), ("a\nb", 422), ("taken", 409)])
async def test_names_that_cannot_be(client, console, name, status):
    """The refusal stands at the field, and nothing is made."""
    await _make(client, "taken")
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
    await _make(client, "laptop")
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
