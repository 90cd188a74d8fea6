"""When requests are sent, and what their times count from."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from appliance.bench.answers import Answer, RequestFailedError
from appliance.bench.load import Generator, Load
from appliance.bench.measurement import Measurement


class Server:
    """Takes `wait_s` for each request, `at_once` of them at a time."""

    def __init__(self, wait_s: float = 0.0, at_once: int = 1000) -> None:
        self.most = self.running = 0
        self._free = asyncio.Semaphore(at_once)
        self._wait_s = wait_s

    async def ask(self, body: bytes) -> Answer:
        self.running += 1
        self.most = max(self.most, self.running)
        sent = time.perf_counter()
        try:
            async with self._free:
                await asyncio.sleep(self._wait_s)
        finally:
            self.running -= 1
        return Answer(sent, [time.perf_counter()], 1, 1)


async def put(load: Load, ask, stop_after_s: float | None = None) -> Measurement:
    measurement = Measurement(1)
    generator = Generator(load, ask, itertools.repeat(b""), measurement)
    if stop_after_s is not None:
        asyncio.get_running_loop().call_later(stop_after_s, generator.stop)
    async with asyncio.timeout(20):
        await generator.run()
    return measurement


async def test_a_closed_loop_keeps_so_many_in_flight():
    server = Server(0.001)
    found = await put(Load(concurrency=3, requests=20), server.ask)
    assert (found.completed, found.begun, found.in_flight, server.most) == (20, 20, 0, 3)


async def test_times_of_an_open_loop_count_from_when_a_request_was_due():
    """A server that does one request after another, each in 20 ms, while one is due every 5 ms: the last waits for all
    before it, and with one connection that wait is in the client."""
    for concurrency in (1, 100):
        load = Load(concurrency=concurrency, requests=20, rate=200, arrivals="constant")
        found = await put(load, Server(0.02, at_once=1).ask)
        assert found.completed == 20
        assert found.end_to_end.most >= 20 * 0.02 - 19 * 0.005 - 0.005


async def test_arrivals_come_at_their_rate_and_the_same_for_a_seed():
    def schedule(arrivals, seed=0):
        load = Load(concurrency=1, rate=50, arrivals=arrivals, seed=seed)
        generator = Generator(load, Server().ask, itertools.repeat(b""), Measurement(1))
        return list(itertools.islice(generator._schedule(0.0), 2000))

    assert schedule("constant")[:3] == pytest.approx([0, 0.02, 0.04])
    assert schedule("poisson") == schedule("poisson") != schedule("poisson", seed=1)
    assert schedule("poisson")[-1] == pytest.approx(40, rel=0.1)


async def test_an_open_loop_that_the_server_cannot_follow_ends_and_tells_what_was_not_sent():
    found = await put(Load(concurrency=2, seconds=0.2, rate=1000, arrivals="constant"), Server(0.05).ask)
    assert found.begun == found.completed
    assert found.not_sent > 150
    assert found.begun + found.not_sent == pytest.approx(200, abs=1)


async def test_no_request_begins_after_the_end():
    found = await put(Load(concurrency=2, seconds=0.1), Server(0.03).ask)
    assert 2 <= found.completed <= 10


@pytest.mark.parametrize("rate", [None, 100.0])
async def test_a_stop_ends_at_once_and_keeps_what_was_measured(rate):
    server = Server(0.001)

    async def slow_later(body: bytes) -> Answer:
        if found_so_far.count(1) >= 5:
            await asyncio.sleep(60)
        found_so_far.append(1)
        return await server.ask(body)

    found_so_far: list[int] = []
    began = time.monotonic()
    found = await put(Load(concurrency=2, rate=rate), slow_later, stop_after_s=0.5)
    assert time.monotonic() - began < 10
    assert found.completed >= 5
    assert found.unfinished >= 1
    assert found.in_flight == 0


@pytest.mark.parametrize("rate", [None, 1000.0])
async def test_a_mistake_of_ours_ends_the_load_and_is_told(rate):
    async def breaks(body: bytes) -> Answer:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await put(Load(concurrency=2, seconds=30, rate=rate), breaks)


async def test_failures_are_counted_by_kind_with_the_first_message():
    numbers = itertools.count()

    async def fails(body: bytes) -> Answer:
        number = next(numbers)
        raise RequestFailedError("even" if number % 2 == 0 else "odd", f"number {number}")

    found = await put(Load(concurrency=1, requests=3), fails)
    told = {kind: (failure.count, failure.first_message) for kind, failure in found.failures.items()}
    assert told == {"even": (2, "number 0"), "odd": (1, "number 1")}
    assert found.completed == 0
