"""The one stream of a page: present values, then changes; feeds that continue where they were."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import aclosing, suppress

import pytest
import sqlalchemy.exc

from console.engine_control.base import EngineStatus
from console.live import routes
from console.live.hub import FEED_LIMIT, TOPIC_LIMIT, Hub, Message
from console.live.routes import frames
from tests.console.launch_folders import failed_launch, ready_launch


async def _yes() -> bool:
    return True


async def _take(hub: Hub, wanted: dict[str, str], count: int, **kwargs) -> list[Message | None]:
    taken = []
    async with aclosing(hub.listen(wanted, **kwargs)) as messages:
        async for message in messages:
            taken.append(message)
            if len(taken) == count:
                break
    return taken


async def _listening(hub: Hub, pages: int) -> None:
    async with asyncio.timeout(30):
        while hub.listening < pages:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_page_gets_the_present_value_then_each_change():
    """Who opens late sees what is; what did not change is not sent again."""
    hub = Hub()
    hub.publish("strip", "a")
    listening = asyncio.create_task(_take(hub, {"strip": ""}, 2))
    await _listening(hub, 1)
    hub.publish("strip", "a")
    hub.publish("other", "x")
    hub.publish("strip", "b")
    assert await listening == [Message("strip", "a"), Message("strip", "b")]
    assert hub.listening == 0


async def test_what_passes_is_not_kept():
    """`send` reaches open pages only."""
    hub = Hub()
    hub.send("load", "1")
    listening = asyncio.create_task(_take(hub, {"load": ""}, 1))
    await _listening(hub, 1)
    hub.send("load", "2")
    assert await listening == [Message("load", "2")]


async def test_a_feed_continues_after_the_last_item_seen():
    """A page that slept asks with its position and misses nothing."""
    hub = Hub()

    async def count(argument: str, position: str):
        for number in range(int(position or 0) + 1, 6):
            yield Message("", f"{argument} {number}", str(number))

    hub.add_feed("count", count)
    assert await _take(hub, {"count:a": "3"}, 2) == [Message("count:a", "a 4", "4"), Message("count:a", "a 5", "5")]


async def test_a_page_that_does_not_read_keeps_the_newest():
    """A stuck browser cannot fill the memory, and what it finds later is the latest."""
    hub = Hub()
    messages = hub.listen({"load": ""}, heartbeat_s=0.01)
    assert await anext(messages) is None
    for number in range(3 * TOPIC_LIMIT):
        hub.send("load", str(number))
    seen = [await anext(messages) for _ in range(TOPIC_LIMIT)]
    assert seen[-1] == Message("load", str(3 * TOPIC_LIMIT - 1))
    await messages.aclose()


async def test_a_page_that_does_not_read_keeps_the_last_value_of_every_topic():
    """However many points of load follow the only change of the strip."""
    hub = Hub()
    messages = hub.listen({"load": "", "strip": ""})
    first = asyncio.ensure_future(anext(messages))
    await _listening(hub, 1)
    hub.send("load", "first")
    await first
    hub.publish("strip", "draining")
    for number in range(3 * TOPIC_LIMIT):
        hub.send("load", str(number))
    seen = [await anext(messages) for _ in range(TOPIC_LIMIT)]
    assert Message("strip", "draining") in seen
    assert seen[-1] == Message("load", str(3 * TOPIC_LIMIT - 1))
    await messages.aclose()


async def test_a_feed_loses_nothing_to_a_page_that_does_not_read():
    """However much is published meanwhile: log lines wait in their file, not in the memory, and come in order."""
    hub = Hub()
    asked = 0

    async def count(argument: str, position: str):
        nonlocal asked
        for asked in range(1, 1001):
            yield Message("", "", str(asked))

    hub.add_feed("count", count)
    messages = hub.listen({"count": "", "load": ""})
    seen = [await anext(messages)]
    for number in range(3 * TOPIC_LIMIT):
        hub.send("load", str(number))
    for _ in range(10 * FEED_LIMIT):  # far more turns than it needs for all of them
        await asyncio.sleep(0)
    assert asked < 2 * FEED_LIMIT
    while len(seen) < 1000:
        message = await anext(messages)
        if message.topic == "count":
            seen.append(message)
    assert [message.position for message in seen] == [str(number) for number in range(1, 1001)]
    await messages.aclose()


@pytest.mark.parametrize("error", [OSError("the disk went away"), KeyError("a fault of ours")])
async def test_a_feed_that_breaks_ends_the_stream(error):
    """The page then asks again, from where it was."""
    hub = Hub()

    async def broken(argument: str, position: str):
        yield Message("", "x", "1")
        raise error

    hub.add_feed("broken", broken)
    assert await asyncio.wait_for(_take(hub, {"broken": ""}, 9), 1) in ([], [Message("broken", "x", "1")])


async def test_a_fault_ends_neither_the_follower_nor_the_other_publishers(console, monkeypatch, caplog):
    """A publisher that raises, and then whole looks that do: each is logged once, and the next look comes."""
    follower = console.follower
    looks, enough = 0, asyncio.Event()

    def broken(view, hub):
        raise KeyError("unforeseen")

    def counting(view, hub):
        nonlocal looks
        looks += 1
        if looks == 3:
            monkeypatch.setattr(follower, "look", failing_look)

    async def failing_look():
        nonlocal looks
        looks += 1
        if looks == 6:
            enough.set()
        raise sqlalchemy.exc.TimeoutError("the pool is empty")

    monkeypatch.setattr("console.live.follower.EVERY_S", 0.01)
    follower.publishers[:] = [broken, counting]
    running = asyncio.create_task(follower.run())
    await asyncio.wait_for(enough.wait(), 10)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert [caplog.text.count(said) for said in ("KeyError: 'unforeseen'\n", "pool is empty")] == [2, 1]


async def test_a_quiet_stream_shows_that_it_lives():
    """Nothing to say for a while is said as such, so that a dead connection is noticed."""
    assert await _take(Hub(), {"strip": ""}, 2, heartbeat_s=0.01) == [None, None]


async def test_closing_ends_every_stream_at_once():
    """The console's end does not wait for open pages."""
    hub = Hub()
    listening = [asyncio.create_task(_take(hub, {"strip": ""}, 99)) for _ in range(3)]
    await _listening(hub, 3)
    hub.close()
    assert await asyncio.wait_for(asyncio.gather(*listening), 30) == [[], [], []]


async def test_frames_are_server_sent_events():
    """Lines of data stay lines, and the id is the position, or empty where a topic has none."""
    hub = Hub()
    hub.publish("strip", "<b>\n</b>")
    async with aclosing(frames(hub, {"strip": ""}, _yes)) as stream:
        assert (await anext(stream)).startswith(b":")
        assert await anext(stream) == b"event: strip\nid: \ndata: <b>\ndata: </b>\n\n"


async def test_too_many_topics_are_refused(client):
    """A page has a handful of live parts, not a thousand."""
    answer = await client.get("/live?topic=" + "&topic=".join(map(str, range(20))))
    assert answer.status_code == 422


async def test_a_stream_ends_with_its_session(monkeypatch):
    """A browser that was signed out elsewhere does not go on listening."""
    monkeypatch.setattr(routes, "ASK_EVERY_S", 0.0)
    hub = Hub()

    async def no() -> bool:
        return False

    hub.publish("strip", "secret")
    assert [frame async for frame in frames(hub, {"strip": ""}, no)] == [b": open\n\n"]
    assert hub.listening == 0


async def test_a_locked_database_does_not_keep_the_engines_state_from_pages(home, console, client, control):
    """While another program holds the write lock the list of launches waits; launch pages answer from their folders,
    the dashboard follows the engine, and the list comes up to date once the lock is gone."""
    ready_launch(home, "20261120-100000-aaaa")
    await console.follower.look()
    held = sqlite3.connect(home.database, isolation_level=None)
    held.execute("BEGIN EXCLUSIVE")
    failed_launch(home, "20261120-110000-bbbb")
    control.present = EngineStatus(running=True, who="process 1")
    view = await console.follower.look()
    assert view.state == "starting"
    page = await client.get("/launches/20261120-110000-bbbb")
    assert "in “graphs”" in page.text
    assert "The MoE kernel" in (await client.get("/launches")).text
    held.execute("COMMIT")
    held.close()
    async with asyncio.timeout(30):
        while len(console.follower.view.recent) < 2:
            await console.follower.look()
