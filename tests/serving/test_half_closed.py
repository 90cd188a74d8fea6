"""A client that closes its own side behind its request gets its answer; one that is gone is noticed at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from appliance.serving import http_protocol
from appliance.serving.http_server import Server
from tests.serving.test_http_requests import CHUNKED, post
from tests.supervisor.scripted import Door

STILL_THERE = b"HTTP/1.1 100 Continue\r\n\r\n"


class App:
    """Answers in two pieces, the first once `begin` is set and the second once `end` is; notes that its client left."""

    def __init__(self) -> None:
        self.asked, self.begin, self.end, self.left = (asyncio.Event() for _ in range(4))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.asked.set()
        watching = asyncio.create_task(self._watch(receive))
        await self.begin.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await self.end.wait()
        await send({"type": "http.response.body", "body": b"b", "more_body": False})
        watching.cancel()

    async def _watch(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


@pytest.fixture
async def app() -> App:
    return App()


@pytest.fixture
async def client(app: App) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Whose request the application has."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(app, lifespan="off", log_config=None)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(post())
    await asyncio.wait_for(app.asked.wait(), 20)
    yield reader, writer
    app.begin.set()
    app.end.set()
    with contextlib.suppress(ConnectionError):
        writer.close()
    server.should_exit = True
    await serving


@pytest.mark.parametrize("begun", [False, True], ids=["before the answer", "as it begins"])
async def test_the_answer_comes_and_then_the_connection_ends(app: App, client: Any, begun: bool) -> None:
    reader, writer = client
    if not begun:
        writer.write_eof()
        await asyncio.sleep(0.05)
    app.begin.set()
    if begun:
        await asyncio.sleep(0.05)
        writer.write_eof()
    await asyncio.sleep(0.05)
    app.end.set()
    answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"ab")
    assert not app.left.is_set()


async def test_a_long_wait_is_interrupted_by_what_clients_read_over(app: App, client: Any) -> None:
    reader, writer = client
    writer.write_eof()
    assert await asyncio.wait_for(reader.readexactly(len(STILL_THERE)), 20) == STILL_THERE
    app.begin.set()
    app.end.set()
    rest = await asyncio.wait_for(reader.read(), 20)
    assert rest.replace(STILL_THERE, b"").startswith(b"HTTP/1.1 200")


async def test_a_client_that_is_gone_is_no_client_that_waits(app: App, client: Any) -> None:
    _, writer = client
    writer.close()
    await asyncio.wait_for(app.left.wait(), 5)


async def test_who_leaves_in_the_middle_of_an_answer_is_gone(
    app: App, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing is sent to it."""
    monkeypatch.setattr(http_protocol, "LEAVES_AFTER_S", 0)
    reader, writer = client
    app.begin.set()
    await reader.readuntil(b"\r\n\r\na")
    writer.write_eof()
    await asyncio.wait_for(app.left.wait(), 5)


async def test_a_client_that_waited_and_then_goes_is_noticed_too(app: App, client: Any) -> None:
    reader, writer = client
    writer.write_eof()
    app.begin.set()
    await reader.readuntil(b"\r\n\r\na")
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # by a reset
    writer.transport.abort()
    await asyncio.wait_for(app.left.wait(), 5)


@pytest.mark.parametrize(("chunked", "stream"), [(False, False), (True, False), (False, True)])
def test_the_front_door_answers_such_a_client(door: Door, chunked: bool, stream: bool) -> None:
    body = b'{"prompt": "hello", "max_tokens": 3, "stream": true}' if stream else None
    request = post(body=CHUNKED, chunked=True) if chunked else post(body=body) if body else post()
    with socket.create_connection((door.http.base_url.host, door.http.base_url.port), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answer:
            said = answer.read()
    assert b"HTTP/1.1 200" in said
    assert b"text_completion" in said
    assert (b"data: [DONE]" in said) == stream


@pytest.mark.parametrize("sent", [b"", post()[:40], post()[:-3]], ids=["nothing", "part of a head", "part of a body"])
def test_what_is_no_whole_request_is_not_waited_for(door: Door, sent: bytes) -> None:
    with socket.create_connection((door.http.base_url.host, door.http.base_url.port), timeout=5) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
