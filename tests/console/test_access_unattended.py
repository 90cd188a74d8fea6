"""An installation that nobody watches: administrator and API key from files."""

from __future__ import annotations

import dataclasses
import hashlib

import msgspec
import pytest
from sqlalchemy import func, select

from appliance.home import Home
from console.access import keys, unattended
from console.access.passwords import is_password
from console.db.models import ApiKey, SetUpCode, User
from console.settings import ConsoleConfig, SettingError

PASSWORD = "a long enough password"
KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def given(console, tmp_path):
    """Run the set-up of a new installation with these files' contents."""

    async def run(**contents: str) -> None:
        files = {}
        for name, text in contents.items():
            (tmp_path / name).write_text(text)
            files[f"{name}_file"] = tmp_path / name
        config = dataclasses.replace(console.config, admin="operator", **files)
        async with console.database.session() as session:
            await unattended.set_up(session, config)

    return run


async def test_the_administrator_is_made_once(given, console):
    """With the file's password, without its line break; no set-up code is left; a later file changes nothing."""
    await given(admin_password=f"{PASSWORD}\n")
    await given(admin_password="another password entirely")
    async with console.database.session() as session:
        user = (await session.scalars(select(User))).one()
        assert user.name == "operator"
        assert await is_password(user.password_hash, PASSWORD)
        assert await session.scalar(select(func.count()).select_from(SetUpCode)) == 0


async def test_a_new_key_in_the_file_replaces_the_old(given, console):
    """The front door's file holds the newest one only; the same key again keeps its row."""
    await given(api_key=KEY)
    first = msgspec.json.decode(console.home.api_keys.read_bytes())
    await given(api_key=KEY)
    assert msgspec.json.decode(console.home.api_keys.read_bytes()) == first
    await given(api_key=KEY[::-1])
    (entry,) = msgspec.json.decode(console.home.api_keys.read_bytes())["keys"]
    assert entry["sha256"] == hashlib.sha256(KEY[::-1].encode()).hexdigest()
    async with console.database.session() as session:
        assert len(list(await session.scalars(select(ApiKey)))) == 1


async def test_a_key_from_a_file_is_required_from_then_on(given, console):
    """Whoever names a file wants the API closed. Turned off on the page, it stays off with the same key."""
    await given(api_key=KEY)
    assert msgspec.json.decode(console.home.api_keys.read_bytes())["required"]
    async with console.database.session() as session:
        await keys.set_required(session, console.home, False)
    await given(api_key=KEY)
    assert not msgspec.json.decode(console.home.api_keys.read_bytes())["required"]


async def test_a_revoked_key_stays_revoked_whatever_the_file_says(given, console, caplog):
    """It is named at each start, and a new one is taken."""
    await given(api_key=KEY)
    (entry,) = msgspec.json.decode(console.home.api_keys.read_bytes())["keys"]
    async with console.database.session() as session:
        await keys.revoke_key(session, console.home, entry["id"])
    await given(api_key=KEY)
    file = msgspec.json.decode(console.home.api_keys.read_bytes())
    assert (file["required"], file["keys"], file["revoked"]) == (True, [], [entry["sha256"]])
    assert "INGOT_API_KEY_FILE" in caplog.text
    await given(api_key=KEY[::-1])
    assert len(msgspec.json.decode(console.home.api_keys.read_bytes())["keys"]) == 1


@pytest.mark.parametrize(
    ("contents", "told"),
    [
        ({"admin_password": "short"}, "INGOT_ADMIN_PASSWORD_FILE is .*5 characters"),
        ({"admin_password": ""}, "INGOT_ADMIN_PASSWORD_FILE is .*0 characters"),
        ({"api_key": "short"}, "INGOT_API_KEY_FILE is "),
        ({"api_key": "two words of more than twenty letters"}, "INGOT_API_KEY_FILE is "),
        ({"api_key": "x" * 5000}, "INGOT_API_KEY_FILE is "),
    ],
)
async def test_what_cannot_be_used_ends_the_start(given, console, contents, told):
    """Named by its setting and file, and nothing is made."""
    with pytest.raises(SettingError, match=told):
        await given(**contents)
    async with console.database.session() as session:
        assert await session.scalar(select(func.count()).select_from(User)) == 0
        assert await session.scalar(select(func.count()).select_from(ApiKey)) == 0


async def test_a_missing_file_is_named(console, tmp_path):
    """With the setting, the path and the reason."""
    config = dataclasses.replace(console.config, admin_password_file=tmp_path / "nowhere")
    async with console.database.session() as session:
        with pytest.raises(SettingError, match=r"INGOT_ADMIN_PASSWORD_FILE is .*nowhere.*No such file"):
            await unattended.set_up(session, config)


def test_a_password_in_the_environment_is_refused(tmp_path):
    """It would be shown to whoever inspects the container."""
    with pytest.raises(SettingError, match="INGOT_ADMIN_PASSWORD_FILE"):
        ConsoleConfig.from_environment(Home.at(tmp_path), {"INGOT_ADMIN_PASSWORD": "secret"})
