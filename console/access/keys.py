"""API keys and whether the API requires one: in the database, and written to `active/keys.json` for the front door.

Requiring a key is a switch of its own: creating and revoking keys never moves it.
"""

from __future__ import annotations

import errno
import secrets

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.home import Home, write_atomically
from appliance.key_file import Key, KeyFile
from console.access.sessions import hashed
from console.conflicts import Conflict
from console.db.models import ApiAccess, ApiKey, RevokedKey
from console.db.sessions import Database
from console.refusals import Refusal

PREFIX = "ingot-"
HINT_LENGTH = len(PREFIX) + 6
NAME_LENGTH = 64
MOST = 1000


class KeyRevokedError(Exception):
    """The key was revoked, which cannot be undone."""


async def list_keys(session: AsyncSession) -> list[ApiKey]:
    """Newest first."""
    return list(await session.scalars(select(ApiKey).order_by(ApiKey.created.desc())))


async def is_required(session: AsyncSession) -> bool:
    return bool(await session.scalar(select(ApiAccess.key_required)))


async def set_required(session: AsyncSession, home: Home, required: bool) -> None:
    """Set whether the API refuses requests without a valid key."""
    await session.merge(ApiAccess(id=1, key_required=required))
    await _write(session, home)


async def create_key(session: AsyncSession, home: Home, name: str, author: str) -> tuple[ApiKey, str]:
    """A new key and its text, of which only the hash is stored."""
    name = name.strip()
    if not name or len(name) > NAME_LENGTH or not name.isprintable():
        raise Refusal(
            422,
            f"Write a name of 1 to {NAME_LENGTH} printable characters.",
            "Name the program or person that will use the key.",
            field="name",
            value=name[:NAME_LENGTH],
        )
    keys = await list_keys(session)
    if any(key.name == name for key in keys):
        message = f"There is already a key named {name}."
        raise Conflict("name-taken", message, "Choose another name.", field="name", value=name)
    if len(keys) >= MOST:
        raise Conflict("too-many-keys", f"There are already {MOST:,} keys.", "Revoke keys that are no longer used.")
    text = PREFIX + secrets.token_urlsafe(32)
    key = _row(name, text, author)
    session.add(key)
    await _write(session, home)
    return key, text


async def put_key(session: AsyncSession, home: Home, name: str, text: str, author: str) -> None:
    """Accept a key made elsewhere, replacing the one with that name, and require keys from now on. Does nothing if
    it is already accepted. Raises KeyRevokedError."""
    if await session.get(RevokedKey, hashed(text)) is not None:
        raise KeyRevokedError
    present = await session.scalar(select(ApiKey).where(ApiKey.name == name))
    if present is not None and present.sha256 == hashed(text):
        return
    await session.execute(delete(ApiKey).where(ApiKey.name == name))
    session.add(_row(name, text, author))
    await set_required(session, home, True)


async def revoke_key(session: AsyncSession, home: Home, key_id: str) -> ApiKey:
    key = await session.get(ApiKey, key_id)
    if key is None:
        raise Refusal(404, "This key no longer exists.", "It has already been revoked.")
    await session.execute(delete(ApiKey).where(ApiKey.id == key_id))
    session.add(RevokedKey(sha256=key.sha256, name=key.name))
    await _write(session, home)
    return key


async def restore_keys(home: Home, database: Database) -> None:
    """Rewrite the file from the database, when the console starts."""
    async with database.session() as session:
        await _write(session, home)


def _row(name: str, text: str, author: str) -> ApiKey:
    return ApiKey(id=secrets.token_hex(4), name=name, hint=text[:HINT_LENGTH], sha256=hashed(text), author=author)


async def _write(session: AsyncSession, home: Home) -> None:
    """Within the transaction that changed the rows: if the file cannot be written, they are rolled back."""
    await session.flush()
    required = await is_required(session)
    keys = [Key(key.id, key.name, key.sha256) for key in await list_keys(session)]
    revoked = list(await session.scalars(select(RevokedKey.sha256).order_by(RevokedKey.revoked)))
    file = KeyFile(keys, required, revoked)
    try:
        write_atomically(home.api_keys, msgspec.json.format(msgspec.json.encode(file)))
    except OSError as error:
        raise Refusal(
            507 if error.errno == errno.ENOSPC else 503,
            f"{home.api_keys} could not be written: {error.strerror}. Nothing was changed.",
            f"Make {home.active} writable and free some space on its disk, then try again.",
        ) from error
