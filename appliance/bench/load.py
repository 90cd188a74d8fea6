"""The two kinds of load: so many requests at a time (closed loop), or arrivals at a rate, whether or not the server
keeps up (open loop)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from appliance.bench.answers import Answer, RequestFailedError
from appliance.bench.measurement import Measurement

PAUSE_AFTER_FAILURE_S: Final = 0.1  # so that a server that refuses at once is not asked thousands of times a second

T = TypeVar("T")
Ask = Callable[[T], Awaitable[Answer]]
Arrivals = Literal["poisson", "constant"]


class Load(NamedTuple):
    """Without a `rate`, a closed loop of `concurrency`; with one, arrivals a second, of which at most `concurrency` are
    in flight. It ends after `requests`, and no request begins after `seconds`."""

    concurrency: int
    requests: int | None = None
    seconds: float | None = None
    rate: float | None = None
    arrivals: Arrivals = "poisson"
    seed: int = 0


class Generator(Generic[T]):
    """Sends `bodies`, or whatever else `ask` takes, as `load` says. `stop` ends it at once."""

    def __init__(self, load: Load, ask: Ask[T], bodies: Iterator[T], measurement: Measurement) -> None:
        self._load = load
        self._ask = ask
        self._bodies = bodies
        self._measurement = measurement
        self._begun = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()
        self._broken: BaseException | None = None
        self._end = float("inf")

    async def run(self) -> None:
        began = time.perf_counter()
        if self._load.seconds is not None:
            self._end = began + self._load.seconds
        if self._load.rate is None:
            for _ in range(self._load.concurrency):
                self._start(self._one_after_another())
        else:
            await self._arrive(began)
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._broken is not None:
            raise self._broken

    def stop(self) -> None:
        self._stopped.set()
        for task in self._tasks:
            task.cancel()

    @property
    def _may_begin(self) -> bool:
        most = self._load.requests
        return (most is None or self._begun < most) and not self._stopped.is_set()

    async def _one_after_another(self) -> None:
        while self._may_begin and (due := time.perf_counter()) < self._end:
            self._begun += 1
            if not await self._send(due):
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    async def _arrive(self, began: float) -> None:
        """Starts each request when it is due, or as soon after as fewer than `concurrency` are in flight."""
        free = asyncio.Semaphore(self._load.concurrency)
        for due in self._schedule(began):
            if not self._may_begin or due >= self._end:
                return
            await self._until(due)
            await self._slot(free)
            if time.perf_counter() >= self._end:
                self._measurement.not_sent += 1
            elif not self._stopped.is_set():
                self._begun += 1
                self._start(self._send(due), free)

    def _schedule(self, began: float) -> Iterator[float]:
        rate, rng, due = self._load.rate, random.Random(self._load.seed), began
        assert rate is not None
        while True:
            if self._load.arrivals == "poisson":
                due += rng.expovariate(rate)
                yield due
            else:
                yield due
                due += 1 / rate

    async def _until(self, due: float) -> None:
        if (wait := due - time.perf_counter()) > 0:
            try:
                async with asyncio.timeout(wait):
                    await self._stopped.wait()
            except TimeoutError:
                pass

    async def _slot(self, free: asyncio.Semaphore) -> None:
        """Waits for one, at the longest until no request may begin any more."""
        left = self._end - time.perf_counter()
        try:
            async with asyncio.timeout(None if left == float("inf") else max(left, 0)):
                await free.acquire()
        except TimeoutError:
            pass

    def _start(self, work: Awaitable[object], free: asyncio.Semaphore | None = None) -> None:
        async def run() -> None:
            await work

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if free is not None:
            task.add_done_callback(lambda _: free.release())

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error
            self.stop()

    async def _send(self, due: float) -> bool:
        """Whether it was answered. Times count from when the request was due."""
        self._measurement.begin(due)
        try:
            answer = await self._ask(next(self._bodies))
        except RequestFailedError as error:
            self._measurement.failed(error)
            return False
        except asyncio.CancelledError:
            self._measurement.unfinished += 1
            raise
        self._measurement.answered(due, answer)
        return True
