"""The addresses that an account has signed in from: other people's wrong passwords do not block them."""

from __future__ import annotations

import time

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.address import network_of
from console.db.models import KnownAddress

MOST = 100
"""Of one account; the ones that were used longest ago are forgotten."""


async def remember(session: AsyncSession, user_id: int, address: str) -> None:
    await session.merge(KnownAddress(user_id=user_id, address=network_of(address), seen=time.time()))
    newest = (
        select(KnownAddress.address)
        .where(KnownAddress.user_id == user_id)
        .order_by(KnownAddress.seen.desc())
        .limit(MOST)
    )
    await session.execute(
        delete(KnownAddress).where(KnownAddress.user_id == user_id, KnownAddress.address.not_in(newest))
    )


async def is_known(session: AsyncSession, user_id: int, address: str) -> bool:
    return await session.get(KnownAddress, (user_id, network_of(address))) is not None
