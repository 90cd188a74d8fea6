"""Who sends next to nothing is cut off, and holds no more than a share of the connections; who is slow but moves, or
waits for a long answer, is not. The clock is moved on by hand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from appliance.serving import http_protocol
from appliance.serving.http_protocol import BODY_SILENCE_S, BODY_WINDOW_BYTES, BODY_WINDOW_S, HEAD_TIMEOUT_S
from appliance.serving.http_server import Server

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
ARRIVES_S = 20.0


class Clock:
    """The loop's, which also runs by itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead = 0.0
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self._ahead)

    async def move(self, seconds: float) -> None:
        self._ahead += seconds
        await asyncio.sleep(0.01)


@pytest.fixture
async def clock(monkeypatch) -> Clock:
    return Clock(asyncio.get_running_loop(), monkeypatch)


class App:
    """Reads a body once `read` is set, and counts its bytes; answers in chunks, each once `answer` is set."""

    def __init__(self) -> None:
        self.calls = self.received = 0
        self.ended: str | None = None
        self.read, self.answer = asyncio.Event(), asyncio.Event()
        self.read.set()
        self.answer.set()
        self.moved = asyncio.Condition()

    async def __call__(self, scope, receive, send) -> None:
        async with self.moved:
            self.calls += 1
            self.moved.notify_all()
        await self.read.wait()
        more = True
        while more:
            message = await receive()
            async with self.moved:
                if message["type"] == "http.disconnect":
                    self.ended = "disconnected"
                else:
                    self.received += len(message["body"])
                self.moved.notify_all()
            if self.ended:
                return
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(10):
            await self.answer.wait()
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await send({"type": "http.response.body", "body": b"end", "more_body": False})

    async def has(self, received: int) -> None:
        async with asyncio.timeout(ARRIVES_S * 10**6), self.moved:  # the loop's clock is moved on meanwhile
            await self.moved.wait_for(lambda: self.received >= received)


@pytest.fixture
async def app() -> App:
    return App()


Connect = Callable[..., Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
async def connect(app: App) -> AsyncIterator[Connect]:
    """Opens a connection, from 127.0.0.1 or another address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(app, lifespan="off", log_config=None)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    writers = []

    async def opened(address: str = "127.0.0.1"):
        reader, writer = await asyncio.open_connection(*listener.getsockname(), local_addr=(address, 0))
        writers.append(writer)
        return reader, writer

    yield opened
    for writer in writers:
        writer.close()
    server.should_exit = True
    await serving


async def is_cut(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def lets_in(connect: Connect) -> None:
    """Wait until the server has seen whoever connected before."""
    reader, writer = await connect("127.0.0.9")
    writer.write(GET)
    assert (await reader.readline()).split()[1] == b"200"


@pytest.mark.parametrize("sent", [b"", GET[:-2], GET + b"G"], ids=["nothing", "part of a head", "a second one"])
async def test_a_head_that_does_not_come_is_not_waited_for(connect, clock, sent):
    """Neither the first nor a later one of the same connection."""
    reader, writer = await connect()
    writer.write(sent)
    if sent.startswith(GET):
        await reader.readuntil(b"0\r\n\r\n")
    await lets_in(connect)
    await clock.move(HEAD_TIMEOUT_S + 1)
    assert await is_cut(reader)


async def test_a_head_that_comes_byte_by_byte_is_cut_off(connect, clock):
    """However long it goes on: the time is that of the whole head."""
    reader, writer = await connect()
    for byte in GET[:11]:
        writer.write(bytes([byte]))
        await lets_in(connect)
        await clock.move(HEAD_TIMEOUT_S / 10)
    assert await is_cut(reader)


async def test_a_body_that_hardly_moves_is_cut_off(connect, clock, app):
    """The application learns that the client is gone."""
    reader, writer = await connect()
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n")
    for received in range(1, 8):
        writer.write(b"x")
        await app.has(received)
        await clock.move(BODY_WINDOW_S / 6.9)
    assert await is_cut(reader)
    async with app.moved:
        await app.moved.wait_for(lambda: app.ended == "disconnected")


@pytest.mark.parametrize("sent", [0, 1, 50_000])
async def test_a_body_whose_sender_falls_silent_is_cut_off(connect, clock, app, sent):
    """However much of it had come, and long before the window ends."""
    reader, writer = await connect()
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + b"x" * sent)
    async with app.moved:
        await app.moved.wait_for(lambda: app.calls)
    await app.has(sent)
    await clock.move(BODY_SILENCE_S - 1)
    assert not reader.at_eof()
    await clock.move(2)
    assert await asyncio.wait_for(is_cut(reader), BODY_WINDOW_S / 2)


async def test_a_slow_upload_that_moves_is_read_to_its_end(connect, clock, app):
    """An hour of it, as long as each window brings enough and no silence is too long."""
    reader, writer = await connect()
    pieces, size = 300, BODY_WINDOW_BYTES // 4
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (pieces * size))
    for number in range(1, pieces + 1):
        writer.write(b"x" * size)
        await app.has(number * size)
        await clock.move(BODY_SILENCE_S - 3)
    assert (await reader.readline()).split()[1] == b"200"


async def test_an_upload_that_we_do_not_read_is_not_cut_off(connect, clock, app):
    """The application is busy with the beginning: what follows waits, however long."""
    app.read.clear()
    reader, writer = await connect()
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 1_000_000)
    async with app.moved:
        await app.moved.wait_for(lambda: app.calls)
    for _ in range(5):
        await clock.move(BODY_WINDOW_S + 1)
    app.read.set()
    assert (await reader.readline()).split()[1] == b"200"


async def test_a_long_answer_is_sent_to_its_end(connect, clock, app):
    """A client that has sent its request has nothing more to send."""
    reader, writer = await connect()
    app.answer.clear()
    writer.write(GET)
    assert (await reader.readline()).split()[1] == b"200"
    for _ in range(10):
        await clock.move(3600)
    app.answer.set()
    assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"end\r\n0\r\n\r\n")


async def test_an_address_has_a_share_of_the_connections(connect, monkeypatch):
    """One more is refused, and told why; other addresses are let in, and the same one is when another has gone."""
    monkeypatch.setattr(http_protocol, "MOST_OF_ADDRESS", 3)
    held = [await connect() for _ in range(3)]
    reader, _ = await connect()
    assert (await reader.read()).split()[1] == b"429"
    await lets_in(connect)
    held[0][1].close()
    await held[0][1].wait_closed()
    await lets_in(connect)
    reader, writer = await connect()
    writer.write(GET)
    assert (await reader.readline()).split()[1] == b"200"


def test_the_share_leaves_files_to_others(monkeypatch):
    """Where a process may open few files, an address gets half of them."""
    for files, most in ((100, 50), (1 << 20, http_protocol.MOST_OF_ADDRESS), (-1, http_protocol.MOST_OF_ADDRESS)):
        monkeypatch.setattr("resource.getrlimit", lambda _, files=files: (files, files))
        assert http_protocol._most_of_address() == most
