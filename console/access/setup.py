"""The first visit: a one-time code, shown in the terminal, allows creating the administrator's account."""

from __future__ import annotations

import hmac
import secrets
from typing import Any, cast

from sqlalchemy import CursorResult, delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from console.access.passwords import hash_password
from console.access.sessions import hashed
from console.authors import RESERVED
from console.conflicts import Conflict
from console.db.models import SetUpCode, User

NAME_LENGTH = 64


async def new_code(session: AsyncSession) -> str | None:
    """A new code, replacing any earlier one; None once there is an account."""
    if await session.scalar(select(func.count()).select_from(User)):
        return None
    code = secrets.token_urlsafe(18)
    await session.execute(delete(SetUpCode))
    session.add(SetUpCode(code_sha256=hashed(code)))
    return code


async def is_code(session: AsyncSession, code: str) -> bool:
    row = await session.scalar(select(SetUpCode))
    return row is not None and hmac.compare_digest(row.code_sha256, hashed(code))


def name_complaint(name: str) -> str:
    """What is wrong with a new account's name; empty when nothing is."""
    if not name:
        return "The name is empty. Choose one to sign in with."
    if len(name) > NAME_LENGTH or not name.isprintable():
        return f"The name {name[:20]!r}... cannot be used. Use at most {NAME_LENGTH} printable characters."
    if name in RESERVED:
        return f"The name {name} is reserved. Choose another."
    return ""


async def make_administrator(session: AsyncSession, name: str, password: str, *, code: str) -> User:
    """The first user. The code is deleted first, so that of two simultaneous requests only one succeeds."""
    password_hash = await hash_password(password)
    used_up = await session.execute(delete(SetUpCode).where(SetUpCode.code_sha256 == hashed(code)))
    if cast("CursorResult[Any]", used_up).rowcount != 1:
        raise Conflict(
            "set-up-done", "The set-up code has already been used.", "Sign in with the account that it created."
        )
    user = User(name=name, password_hash=password_hash)
    session.add(user)
    await session.flush()
    return user
