"""Runs one benchmark at a time in the background, reports its progress, and stores the result."""

from __future__ import annotations

import asyncio
import time

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.home import Home
from console.access.token import token_header
from console.benchmarks import load
from console.conflicts import Conflict
from console.db.models import Benchmark, may_be_stored
from console.db.sessions import Database
from console.live.follower import Follower
from console.refusals import Refusal


class Running(msgspec.Struct, frozen=True):
    """The running benchmark, for the page."""

    profile: str
    revision: str
    started: float
    step: str
    share: float


class Benchmarks:
    """`running` is None between runs; `problem` is why the last one gave no result."""

    def __init__(self, home: Home, database: Database, follower: Follower) -> None:
        self.running: Running | None = None
        self.problem = ""
        self._home = home
        self._database = database
        self._follower = follower
        self._task: asyncio.Task[None] | None = None

    def start(self, author: str) -> None:
        view = self._follower.view
        if self.running is not None:
            message = "A benchmark is already running."
            raise Conflict("benchmark-running", message, "Wait until it has finished, in less than a minute.")
        if not view.ready or not view.models or view.launch is None:
            raise Conflict(
                "engine-not-ready",
                f"The engine is {view.word}, so it cannot be measured.",
                "Wait until it is ready, or start it, then try again.",
            )
        if view.load.running or view.load.waiting:
            raise Conflict(
                "engine-busy",
                f"The engine has {view.load.running:,} running and {view.load.waiting:,} waiting requests, which would "
                "distort the result.",
                "Try again when it is idle.",
            )
        self.problem = ""
        self.running = Running(view.launch.profile, view.launch.revision, time.time(), "", 0.0)
        self._task = asyncio.create_task(self._run(view.launch.id, view.models[0], view.url, author))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, launch_id: str, model: str, url: str, author: str) -> None:
        assert self.running is not None
        row = self.running
        results: list[load.Result] = []
        try:
            for index, streams in enumerate(load.STREAMS):
                step = f"{streams} stream{'s' if streams > 1 else ''}"
                self.running = msgspec.structs.replace(row, step=step, share=index / len(load.STREAMS))
                results.append(await load.run(url, model, token_header(self._home), streams))
            async with self._database.session() as session:
                session.add(
                    Benchmark(
                        launch_id=launch_id,
                        profile=row.profile,
                        revision=row.revision,
                        model=model,
                        started=row.started,
                        author=author,
                        results=[msgspec.to_builtins(result) for result in results],
                    )
                )
        except load.LoadError as error:
            self.problem = str(error)
        finally:
            self.running = None


async def list_benchmarks(session: AsyncSession) -> list[Benchmark]:
    return list(await session.scalars(select(Benchmark).order_by(Benchmark.started.desc())))


async def forget(session: AsyncSession, benchmark_id: int) -> None:
    forgotten = delete(Benchmark).where(Benchmark.id == benchmark_id).returning(Benchmark.id)
    if not may_be_stored(benchmark_id) or await session.scalar(forgotten) is None:
        raise Refusal(404, "This result no longer exists.", "It has already been deleted.")
