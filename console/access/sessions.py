"""Signed-in browsers: a random token in a cookie, its hash in the database, an expiry that use moves forward."""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from typing import Any

import msgspec
from litestar import Request
from litestar.datastructures import Cookie
from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from console.access import known_addresses
from console.db.models import SignIn, User
from console.db.sessions import Database

log = logging.getLogger(__name__)

COOKIE = "ingot-session"
SEEN_EVERY_S = 300.0
"""How often a session's last use is written down: not at each request."""


class SignedIn(msgspec.Struct, frozen=True):
    """`request.user`: the user and session of this request."""

    id: int
    name: str
    session_id: int


def hashed(secret: str) -> str:
    """For secrets of 32 random bytes, which need no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


async def anybody(database: Database) -> bool:
    """Whether the administrator has been made."""
    async with database.session() as session:
        return bool(await session.scalar(select(func.count()).select_from(User)))


async def signed_in(database: Database, request: Request[Any, Any, Any], hours: int) -> SignedIn | None:
    token = request.cookies.get(COOKIE)
    if not token:
        return None
    now = time.time()
    async with database.session() as session:
        row = await session.scalar(select(SignIn).where(SignIn.token_sha256 == hashed(token), SignIn.expires > now))
    if row is None:
        return None
    if now - row.seen > SEEN_EVERY_S:
        await _write_down_use(database, row.id, now, now + hours * 3600)
    return SignedIn(row.user_id, row.user.name, row.id)


async def is_open(database: Database, session_id: int) -> bool:
    """Whether a session has neither ended nor run out: for streams, which outlast the request that opened them."""
    async with database.session() as session:
        row = await session.get(SignIn, session_id)
        return row is not None and row.expires > time.time()


async def _write_down_use(database: Database, session_id: int, seen: float, expires: float) -> None:
    """Failing to write the database must not prevent reading pages."""
    try:
        async with database.session() as session:
            await session.execute(update(SignIn).where(SignIn.id == session_id).values(seen=seen, expires=expires))
    except DBAPIError as error:
        log.warning("A session's last use could not be recorded: %s", error.orig)


async def open_session(
    session: AsyncSession, user: User, request: Request[Any, Any, Any], *, hours: int, secure: bool
) -> Cookie:
    """Sign a browser in; sessions that ran out are swept away on the way."""
    now = time.time()
    token = secrets.token_urlsafe(32)
    address = request.client.host if request.client else ""
    await session.execute(delete(SignIn).where(SignIn.expires <= now))
    await known_addresses.remember(session, user.id, address)
    session.add(
        SignIn(
            token_sha256=hashed(token),
            user_id=user.id,
            expires=now + hours * 3600,
            address=address,
            agent=request.headers.get("user-agent", "")[:200],
        )
    )
    return Cookie(
        key=COOKIE, value=token, httponly=True, samesite="strict", secure=secure, path="/", max_age=hours * 3600
    )


def no_cookie() -> Cookie:
    return Cookie(key=COOKIE, value="", httponly=True, samesite="strict", path="/", max_age=0)
