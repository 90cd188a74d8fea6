"""The numbers that people use for launches: the database assigns them in the order in which it first sees each."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from console.db.models import Launch


async def launch_numbers(session: AsyncSession) -> dict[str, int]:
    """Number by launch id. A launch that the database has not seen yet is not among them."""
    rows = await session.execute(select(Launch.launch_id, Launch.number))
    return {row.launch_id: row.number for row in rows}
