"""What every engine control promises, as tests that its own test module inherits: of processes in
test_engine_control, of containers in tests/container/test_docker_control. The engine is a shell script, the same in
both."""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import httpx

from console.access.setup import make_administrator, new_code
from console.app import Console, create_app
from console.engine_control.base import EngineControl, OutputLine
from console.pages import PLACES
from console.settings import ConsoleConfig
from tests.console.conftest import BASE_URL, BROWSER, PASSWORD

# What it does is read at each start from the file that $1 names.
SCRIPT = """
mode=$(cat "$1")
echo "the engine begins: $mode"
trap 'echo "the engine ends"; exit 0' TERM
case $mode in
    fails) echo "Error: port 8123 is taken" >&2; exit 3 ;;
    floods) for number in $(seq 500); do printf 'flood %d %0100d\\n' $number 0; done ;;
    counts) for number in $(seq 100000); do echo "count $number"; sleep 0.01; done ;;
esac
while :; do sleep 0.02; done
"""
FLOOD = 500


class ScriptedEngine(Protocol):
    """The script under a control; `mode` is the file that says what it does next."""

    control: EngineControl
    mode: Path

    def kill(self) -> None:
        """End it as somebody does who knows nothing of the console."""


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


async def ended(control: EngineControl) -> bool:
    return (await control.status()).ended is not None


@asynccontextmanager
async def kept(stream: Callable[[], AsyncGenerator]) -> AsyncIterator[list]:
    """What a stream has given so far, in a list that grows."""
    given: list = []

    async def keep() -> None:
        async with aclosing(stream()) as items:
            async for item in items:
                given.append(item)

    task = asyncio.create_task(keep())
    await asyncio.sleep(0.3)
    yield given
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def has(lines: list[OutputLine], text: str, times: int = 1) -> bool:
    return sum(text in line.text for line in lines) >= times


@asynccontextmanager
async def opened(config: ConsoleConfig, control: EngineControl) -> AsyncIterator[Reader]:
    """A console that follows this control, signed in: address -> the page's text, without its markup."""
    app = create_app(config, control)
    console: Console = app.state.console
    # In the loop of the test, as the console runs in one: Litestar's test client would start another thread.
    transport = httpx.ASGITransport(cast(Any, app), raise_app_exceptions=False)
    browser = httpx.AsyncClient(transport=transport, base_url=BASE_URL, headers=BROWSER, follow_redirects=True)
    async with app.lifespan(), browser as client:
        async with console.database.session() as session:
            await make_administrator(session, "admin", PASSWORD, code=await new_code(session))
        signed_in = await client.post("/sign-in", data={"name": "admin", "password": PASSWORD})
        assert signed_in.status_code == 200, signed_in.text

        yield Reader(client)


class Reader:
    """A browser that is signed in: called with an address, the page's text, without its markup."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def __call__(self, address: str) -> str:
        answer = await self.client.get(address)
        assert answer.status_code == 200, f"{address}: {answer.text[:500]}"
        return html.unescape(re.sub(r"<[^>]*>", "", answer.text))


async def shows(read: Reader, address: str, *texts: str, seconds: float = 60.0) -> None:
    """Until the page says all of these."""
    deadline = time.monotonic() + seconds
    while absent := [text for text in texts if text not in (page := await read(address))]:
        assert time.monotonic() < deadline, f"{address} does not say {absent}, but: {' '.join(page.split())[:3000]}"
        await asyncio.sleep(0.1)


class EnginePromises:
    """Inherited by one class a control, in a module with a fixture `engine`."""

    async def test_start_stop_restart(self, engine):
        """Each does what it says, and asking twice is no error."""
        control = engine.control
        engine.mode.write_text("runs")
        assert not (await control.status()).running
        await control.start()
        await control.start()
        first = await control.status()
        assert first.running
        assert abs(first.since - time.time()) < 10
        await asyncio.sleep(0.3)
        await control.restart()
        second = await control.status()
        assert second.running
        assert second.since > first.since
        await control.stop()
        await control.stop()
        stopped = await control.status()
        assert not stopped.running
        assert stopped.exit_code == 0
        assert stopped.problem is None

    async def test_a_failure_is_told_with_its_code(self, engine):
        """What ends by itself with an error has failed, and how is known."""
        engine.mode.write_text("fails")
        await engine.control.start()
        await until(lambda: ended(engine.control))
        status = await engine.control.status()
        assert (status.ended, status.exit_code, status.out_of_memory) == ("exit status 3", 3, False)

    async def test_a_kill_from_outside_is_told_as_one(self, engine):
        """By the signal's name, as a failure; starting again forgets it."""
        engine.mode.write_text("runs")
        await engine.control.start()
        engine.kill()
        await until(lambda: ended(engine.control))
        status = await engine.control.status()
        assert status.ended == "killed by SIGKILL"
        assert status.exit_code not in (None, 0)
        assert status.problem.id == "engine-killed"
        await engine.control.start()
        again = await engine.control.status()
        assert (again.ended, again.problem) == (None, None)

    async def test_output_is_followed_through_a_restart(self, engine):
        """From before anybody listened: every line once, in order, of one run after the other."""
        engine.mode.write_text("counts")
        await engine.control.start()
        await asyncio.sleep(0.5)
        async with kept(engine.control.follow) as lines:
            await until(lambda: has(lines, "count 30"))
            await engine.control.restart()
            await until(lambda: has(lines, "the engine begins", 2))
            await until(lambda: has(lines, "count 30", 2))
        texts = [line.text for line in lines]
        begins = [place for place, text in enumerate(texts) if text == "the engine begins: counts"]
        assert begins[0] == 0
        for run in (texts[: begins[1]], texts[begins[1] :]):
            counted = [int(text.split()[1]) for text in run if text.startswith("count ")]
            assert counted == list(range(1, len(counted) + 1))
        assert "the engine ends" in texts
        assert [line.at for line in lines] == sorted(line.at for line in lines)

    async def test_last_words_are_not_lost(self, engine):
        """What is written in the moment of the end is there, run after run."""
        engine.mode.write_text("fails")
        async with kept(engine.control.follow) as lines:
            for run in range(1, 4):
                await engine.control.start()
                await until(lambda: ended(engine.control))
                await until(partial(has, lines, "port 8123 is taken", run))
            await asyncio.sleep(0.5)
        assert len([line for line in lines if "port 8123" in line.text]) == 3

    async def test_only_the_end_of_a_long_past_is_told(self, engine):
        """Whoever comes late is not given all of it."""
        engine.mode.write_text("floods")
        await engine.control.start()
        async with kept(engine.control.follow) as lines:
            await until(lambda: has(lines, f"flood {FLOOD} "))
        async with kept(lambda: engine.control.follow(tail=10)) as lines:
            await until(lambda: has(lines, f"flood {FLOOD} "))
        assert len(lines) == 10

    async def test_events_tell_what_happened(self, engine):
        """A start, a failure that nobody asked for, and a stop that somebody did."""
        async with kept(engine.control.events) as events:

            async def told(text: str, failed: bool) -> bool:
                return any(text in event.text and event.failed is failed for event in events)

            engine.mode.write_text("runs")
            await engine.control.start()
            await until(lambda: told("started", False))
            engine.kill()
            await until(lambda: told("ended: killed by SIGKILL", True))
            events.clear()
            await engine.control.start()
            await until(lambda: told("started", False))
            await engine.control.stop()
            await until(lambda: told("ended", False))
            assert not any(event.failed for event in events)

    async def test_open_streams_do_not_hold_up_the_end(self, engine):
        """The console ends within seconds, however quiet its engine is."""
        engine.mode.write_text("runs")
        await engine.control.start()
        async with kept(engine.control.follow), kept(engine.control.events):
            pass
        async with asyncio.timeout(30):
            await engine.control.close(keep_engine=True)

    async def test_pages_show_output_before_a_front_door_lives(self, engine, config):
        """The dashboard and the log page, while it runs without a word of HTTP."""
        engine.mode.write_text("runs")
        async with opened(config, engine.control) as read:
            await engine.control.start()
            await shows(read, "/", "starting", "the engine begins: runs")
            await shows(read, "/log", "the engine begins: runs")

    async def test_pages_tell_how_it_ended(self, engine, config):
        """The exit code and the last words, wherever somebody looks first."""
        engine.mode.write_text("fails")
        async with opened(config, engine.control) as read:
            await engine.control.start()
            await shows(read, "/", "failed", "exit status 3", "Error: port 8123 is taken")
            await shows(read, "/log", "Error: port 8123 is taken")

    async def test_every_page_opens(self, engine, config):
        """Whatever the engine is at: never started, running, failed, stopped by its button, started by it."""
        async with opened(config, engine.control) as read:

            async def all_open(word: str) -> None:
                await shows(read, "/", word)
                for place in PLACES:
                    await read(place.path)

            await all_open("idle")
            engine.mode.write_text("runs")
            assert (await read.client.post("/engine/start")).status_code == 200
            await all_open("starting")
            engine.mode.write_text("fails")
            assert (await read.client.post("/engine/restart")).status_code == 200
            await all_open("failed")
            engine.mode.write_text("runs")
            assert (await read.client.post("/engine/start")).status_code == 200
            await all_open("starting")
            assert (await read.client.post("/engine/stop")).status_code == 200
            await all_open("stopped")

    async def test_a_flood_does_not_freeze_the_pages(self, engine, config):
        """Five hundred long lines at once: all arrive, and no page waits for them."""
        engine.mode.write_text("floods")
        dearest = 0.0
        async with opened(config, engine.control) as read:
            await engine.control.start()
            deadline = time.monotonic() + 60
            while f"flood {FLOOD} " not in await read("/log"):
                assert time.monotonic() < deadline
                began = time.process_time()
                await read("/")
                dearest = max(dearest, time.process_time() - began)
            assert "flood 100 " in await read("/log")
        assert dearest < 5
