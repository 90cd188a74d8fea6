"""The live log can be cut at any point and taken up again: no line is lost, none is told twice."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.protocol import State
from console.live.hub import Hub
from console.logs import stream
from console.logs.store import LogStore
from tests.console.launch_folders import WrittenLaunch, ready_launch
from tests.console.listening import message_with

OLD, NEW = "20261120-100000-aaaa", "20261120-110000-bbbb"


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(stream, "POLL_S", 0.001)


class Reader:
    """A page: it keeps what it was told and the last position, and comes back with that."""

    def __init__(self, home: Home) -> None:
        self.feed = stream.feed(Catalogue(home), LogStore(home))
        self.position = ""
        self.lines: list[tuple[str, int, str]] = []
        self.launches: list[str] = []

    async def read(self, frames: int, argument: str = "current") -> None:
        """Take so many frames, then lose the connection."""
        messages = self.feed(argument, self.position)
        async with asyncio.timeout(10):
            for _ in range(frames):
                message = await anext(messages)
                frame = json.loads(message.data)
                if frame["kind"] == "launch":
                    self.launches.append(frame["launch"])
                elif frame["kind"] == "lines":
                    told = [(frame["launch"], line["number"], line["segments"][0][0]) for line in frame["lines"]]
                    assert [number for _, number, _ in told] == list(range(frame["first"], frame["last"] + 1))
                    self.lines += told
                self.position = message.position or self.position
        await messages.aclose()


def rows(launch: str, first: int, last: int) -> list[tuple[str, int, str]]:
    return [(launch, number, f"row {number}") for number in range(first, last + 1)]


@given(
    bursts=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    restart_after=st.integers(0, 8),
)
@settings(max_examples=40, deadline=None)
async def test_any_cuts_between_any_bursts(tmp_path_factory, bursts, cuts, restart_after):
    """However lines come and connections end, and wherever the engine starts anew in between, all is told once."""
    home = Home.at(tmp_path_factory.mktemp("home"))
    launch, count, expected = WrittenLaunch(home, OLD), 0, []
    reader = Reader(home)
    await reader.read(1)
    current = OLD
    for turn, burst in enumerate(bursts):
        if turn == restart_after:
            launch, count, current = WrittenLaunch(home, NEW), 0, NEW
        launch.log(*(f"row {number}" for number in range(count + 1, count + burst + 1)))
        expected += rows(current, count + 1, count + burst)
        count += burst
        for _ in range(cuts[turn % len(cuts)]):
            if len(reader.lines) < len(expected):
                await reader.read(1)
    while len(reader.lines) < len(expected):
        await reader.read(1)
    assert reader.lines == expected
    assert reader.launches == ([OLD, NEW] if current == NEW else [OLD])


@pytest.mark.parametrize("cut", range(13))
async def test_every_cut_point(home, cut):
    """A page that has seen `cut` lines gets exactly the others."""
    ready_launch(home, OLD)
    (home.launch(OLD) / "engine.log").write_text("".join(f"row {number}\n" for number in range(1, 13)))
    reader = Reader(home)
    reader.position = stream.position(OLD, cut)
    if cut < 12:
        await reader.read(1)
    assert reader.lines == rows(OLD, cut + 1, 12)
    with (home.launch(OLD) / "engine.log").open("a") as file:
        file.write("row 13\nrow")
    await reader.read(1)
    assert reader.lines == rows(OLD, cut + 1, 13)


async def test_a_flood_is_announced_whole_and_carried_in_part(home):
    """What a frame does not carry it still counts, so that the page can fetch it."""
    launch = ready_launch(home, OLD)
    (launch.folder / "engine.log").write_text("x\n" * 5000)
    messages = stream.feed(Catalogue(home), LogStore(home))(OLD, "")
    frame = json.loads((await anext(messages)).data)
    await messages.aclose()
    assert (frame["first"], frame["last"], len(frame["lines"])) == (1, 5000, stream.CARRIED_LINES)
    assert frame["lines"][-1]["number"] == 5000


async def test_written_fast_while_read(home):
    """A log that grows by thousands of lines a second, through many short connections."""
    launch = ready_launch(home, OLD)
    path = launch.folder / "engine.log"
    path.write_bytes(b"")
    total = 6000

    def write() -> None:
        with path.open("ab", buffering=0) as file:
            for first in range(1, total + 1, 50):
                file.write("".join(f"row {number}\n" for number in range(first, first + 50)).encode())
                time.sleep(0.002)

    writer = threading.Thread(target=write)
    writer.start()
    reader = Reader(home)
    reader.position = stream.position(OLD, 0)
    while len(reader.lines) < total:
        await reader.read(2 if len(reader.lines) < total - 500 else 1, OLD)
    writer.join()
    assert reader.lines == rows(OLD, 1, total)


async def test_a_line_that_stands_unfinished_is_shown(home, monkeypatch):
    """It comes without a position, so that it is told again when it is whole."""
    monkeypatch.setattr(stream, "UNFINISHED_AFTER_S", 0.01)
    launch = ready_launch(home, OLD)
    (launch.folder / "engine.log").write_text("row 1\nloading 3 of")
    messages = stream.feed(Catalogue(home), LogStore(home))(OLD, "")
    async with asyncio.timeout(30):
        first, second = await anext(messages), await anext(messages)
        assert json.loads(second.data)["line"]["number"] == 2
        assert (first.position, second.position) == (f"{OLD}#1", "")
        with (launch.folder / "engine.log").open("a") as file:
            file.write(" 8\n")
        third = await anext(messages)
    assert json.loads(third.data)["lines"][0]["segments"] == [["loading 3 of 8", ""]]
    await messages.aclose()


@pytest.mark.parametrize(
    "position", ["", "#", "x", "#5", f"{OLD}#", f"{OLD}#-1", f"{OLD}#x", f"{OLD}#" + "9" * 30, "é#1\n"]
)
async def test_positions_that_are_none(home, position):
    """Anything but a position of ours begins at the beginning."""
    launch = ready_launch(home, OLD)
    (launch.folder / "engine.log").write_text("row 1\n")
    reader = Reader(home)
    reader.position = position
    await reader.read(2)
    assert reader.lines == rows(OLD, 1, 1)


async def test_a_position_of_another_launch_does_not_leak_into_this_one(home):
    """A page that asks for one launch and comes back with another's position gets its launch from the start."""
    for name in (OLD, NEW):
        launch = ready_launch(home, name)
        (launch.folder / "engine.log").write_text("row 1\nrow 2\n")
    reader = Reader(home)
    reader.position = stream.position(NEW, 1)
    await reader.read(1, OLD)
    assert reader.lines == rows(OLD, 1, 2)


async def test_no_line_can_forge_a_frame(console, home):
    """Through the page's one stream: a line that looks like a frame stays the text of its line."""
    launch = ready_launch(home, OLD)
    (launch.folder / "engine.log").write_bytes(b"\r\rid: x\revent: lines\rdata: {}\n</script>\n\xff\xfe\x00\n")
    messages = console.hub.listen({f"log:{OLD}": ""})
    message = await message_with(messages)
    await messages.aclose()
    assert "\n" not in message.data
    assert "\r" not in message.data
    assert [line["number"] for line in json.loads(message.data)["lines"]] == [1, 2, 3]


async def test_a_page_that_listens_when_nothing_is_there_yet(home):
    """The first launch's lines come as soon as they are written."""
    hub = Hub()
    hub.add_feed("log", stream.feed(Catalogue(home), LogStore(home)))
    messages = hub.listen({"log:current": ""}, heartbeat_s=0.05)
    assert await anext(messages) is None
    ready_launch(home, OLD).change(State.STOPPED)
    async with asyncio.timeout(30):
        kinds = []
        async for message in messages:
            if message is not None:
                kinds.append(json.loads(message.data)["kind"])
            if kinds == ["launch", "lines"]:
                break
    await messages.aclose()
