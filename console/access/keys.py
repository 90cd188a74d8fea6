"""API keys: made, revoked, and written to `active/keys.json`, where the front door reads them."""

from __future__ import annotations

import secrets

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.home import Home, write_atomically
from console.access.sessions import hashed
from console.db.models import ApiKey
from console.db.sessions import Database
from console.errors import Refusal

PREFIX = "ingot-"
HINT_LENGTH = len(PREFIX) + 6
NAME_LENGTH = 64
MOST = 1000


async def list_keys(session: AsyncSession) -> list[ApiKey]:
    return list(await session.scalars(select(ApiKey).order_by(ApiKey.created.desc())))


async def make_key(session: AsyncSession, home: Home, name: str, author: str) -> tuple[ApiKey, str]:
    """A new key and its text, which is nowhere else: only its hash is kept."""
    name = name.strip()
    if not name or len(name) > NAME_LENGTH or not name.isprintable():
        raise Refusal(
            422,
            f"A key needs a name of 1 to {NAME_LENGTH} printable characters.",
            "Name the program or person that will use it.",
            field="name",
            value=name[:NAME_LENGTH],
        )
    keys = await list_keys(session)
    if any(key.name == name for key in keys):
        raise Refusal(409, f"There is a key named {name} already.", "Choose another name.", field="name", value=name)
    if len(keys) >= MOST:
        raise Refusal(409, f"There are {MOST} keys already.", "Revoke some that are not used any more.")
    text = PREFIX + secrets.token_urlsafe(32)
    key = _row(name, text, author)
    session.add(key)
    await _write(session, home)
    return key, text


async def put_key(session: AsyncSession, home: Home, name: str, text: str, author: str) -> None:
    """A key whose text somebody else made; it takes the place of the one of that name."""
    present = await session.scalar(select(ApiKey).where(ApiKey.name == name))
    if present is not None and present.sha256 == hashed(text):
        return
    await session.execute(delete(ApiKey).where(ApiKey.name == name))
    session.add(_row(name, text, author))
    await _write(session, home)


async def revoke_key(session: AsyncSession, home: Home, key_id: str) -> ApiKey:
    key = await session.get(ApiKey, key_id)
    if key is None:
        raise Refusal(404, "That key is not there any more.", "Somebody revoked it before.")
    await session.execute(delete(ApiKey).where(ApiKey.id == key_id))
    await _write(session, home)
    return key


async def restore_keys(home: Home, database: Database) -> None:
    """Write the file again at the console's start: it follows the database, whatever happened to it meanwhile."""
    async with database.session() as session:
        if await list_keys(session) or home.api_keys.exists():
            await _write(session, home)


def _row(name: str, text: str, author: str) -> ApiKey:
    return ApiKey(id=secrets.token_hex(4), name=name, hint=text[:HINT_LENGTH], sha256=hashed(text), author=author)


async def _write(session: AsyncSession, home: Home) -> None:
    """Within the transaction that changed the rows: where the file cannot be written, the rows stay as they were."""
    await session.flush()
    keys = [{"id": key.id, "name": key.name, "sha256": key.sha256} for key in await list_keys(session)]
    try:
        write_atomically(home.api_keys, msgspec.json.format(msgspec.json.encode({"keys": keys})))
    except OSError as error:
        raise Refusal(
            507 if error.errno == 28 else 503,
            f"{home.api_keys} could not be written: {error.strerror}. The keys are as they were.",
            f"Make {home.active} writable and give its disk space, then try again.",
        ) from error
