"""How the database is opened: one async engine on one SQLite file, set up for several readers and one writer."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import event, text
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA busy_timeout = 5000",
)


class Database:
    """The console's database. `session()` commits at its end and rolls back when its body raises."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._engine = create_async_engine(URL.create("sqlite+aiosqlite", database=str(path)))
        self._sessions = async_sessionmaker(self._engine, expire_on_commit=False)
        event.listen(self._engine.sync_engine, "connect", _set_pragmas)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        async with self._sessions() as session, session.begin():
            yield session

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncSession]:
        """Like `session()`, with the write lock taken first: what its body reads cannot change before it writes."""
        async with self.session() as session:
            await session.execute(text("BEGIN IMMEDIATE"))
            yield session

    async def close(self) -> None:
        await self._engine.dispose()


def _set_pragmas(connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        cursor.execute(pragma)
    cursor.close()
