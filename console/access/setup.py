"""The first visit: a one-time code, shown in the terminal, lets whoever reads it make the administrator."""

from __future__ import annotations

import hmac
import secrets

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from console.access.passwords import hash_password
from console.access.sessions import hashed
from console.db.models import SetUpCode, User


async def new_code(session: AsyncSession) -> str | None:
    """A fresh code, replacing any earlier one; None once somebody can sign in."""
    if await session.scalar(select(func.count()).select_from(User)):
        return None
    code = secrets.token_urlsafe(18)
    await session.execute(delete(SetUpCode))
    session.add(SetUpCode(code_sha256=hashed(code)))
    return code


async def is_code(session: AsyncSession, code: str) -> bool:
    row = await session.scalar(select(SetUpCode))
    return row is not None and hmac.compare_digest(row.code_sha256, hashed(code))


async def make_administrator(session: AsyncSession, name: str, password: str) -> User:
    """The first user; the code is used up."""
    user = User(name=name, password_hash=await hash_password(password))
    session.add(user)
    await session.execute(delete(SetUpCode))
    await session.flush()
    return user
