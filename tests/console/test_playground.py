"""The playground's way to the model: everything passes as it is, and an end on one side is an end on the other."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn

from appliance.core_protocol import SAMPLING_LIMITS
from appliance.front_door_token import front_door_token
from console.access.sessions import COOKIE
from console.playground.inputs import INPUTS
from tests.console.conftest import BROWSER

BODY = {"messages": [{"role": "user", "content": "What does sealed mean? é\u2028"}], "stream": True}


class FrontDoor:
    """Answers on a real socket as it is told to, and remembers what was asked and when the asker went away."""

    def __init__(self) -> None:
        self.head = ""
        self.body = b""
        self.gone = asyncio.Event()
        self.answer: list[bytes] = []
        self.forever = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [line for line in self.head.lower().splitlines() if line.startswith("content-length:")]
        self.body = await reader.readexactly(int(lengths[0].split(":")[1]))
        for piece in self.answer:
            writer.write(piece)
            await writer.drain()
        if self.forever:
            while not reader.at_eof():
                writer.write(b"5\r\ndata:\r\n")
                await asyncio.wait_for(asyncio.gather(writer.drain(), reader.read(1)), 30)
            self.gone.set()
        writer.close()


@pytest.fixture
async def door(console) -> AsyncIterator[FrontDoor]:
    front_door = FrontDoor()
    server = await asyncio.start_server(front_door.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    console.follower.client.base_url = f"http://127.0.0.1:{port}"
    yield front_door
    server.close()


@pytest.fixture
async def browser(app, client) -> AsyncIterator[httpx.AsyncClient]:
    """Signed in, over a real socket to a real server: only there can a browser go away. (`client` made the session.)"""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    task = asyncio.create_task(server.serve([listening]))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, cookies={COOKIE: "test-token"}, headers=BROWSER) as made:
        yield made
    server.should_exit = True
    await task


def answer(status: str, media_type: str, *pieces: bytes) -> list[bytes]:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return [head, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)]


END = b"0\r\n\r\n"


async def test_question_and_answer_pass_as_they_are(browser, door, home):
    """The body arrives byte for byte under the console's token, and the stream comes back byte for byte."""
    home.console_token.write_text("the-token\n")
    pieces = [b'data: {"a": "\xc3', b'\xa9"}\n\n', b"data: [DONE]\n\n"]
    door.answer = [*answer("200 OK", "text/event-stream", *pieces), END]
    response = await browser.post("/playground/chat", json=BODY)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.content == b"".join(pieces)
    assert json.loads(door.body) == BODY
    assert f"Bearer {front_door_token(home)}" in door.head
    assert "the-token" not in door.head
    assert door.head.startswith("POST /v1/chat/completions ")


@pytest.mark.parametrize("status", ["400 Bad Request", "401 Unauthorized", "503 Service Unavailable"])
async def test_refusals_pass_with_their_status(browser, door, status):
    """What the front door says about a bad request is what the page gets."""
    said = b'{"error": {"message": "The field \'temperature\' is too low.", "param": "temperature"}}'
    door.answer = [*answer(status, "application/json", said), END]
    response = await browser.post("/playground/chat", json=BODY)
    assert response.status_code == int(status[:3])
    assert response.content == said


async def test_no_front_door(browser, console):
    """Nothing listens: the answer says so in the shape that the page's script reads."""
    console.follower.client.base_url = "http://127.0.0.1:9"
    response = await browser.post("/playground/chat", json=BODY)
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "engine_unreachable"


async def test_a_front_door_that_dies_in_the_middle(browser, door):
    """What had come is passed on, and the stream ends in an error, not in silence."""
    door.answer = answer("200 OK", "text/event-stream", b'data: {"choices": []}\n\n')
    response = await browser.post("/playground/chat", json=BODY)
    first, last = response.content.strip().split(b"\n\n")
    assert first == b'data: {"choices": []}'
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"]


async def test_visitors_and_foreign_pages_do_not_chat(browser, door):
    """Only somebody signed in, and only from the console's own pages."""
    foreign = {"Sec-Fetch-Site": "cross-site"}
    assert (await browser.post("/playground/chat", json=BODY, headers=foreign)).status_code == 403
    browser.cookies.clear()
    assert (await browser.post("/playground/chat", json=BODY, follow_redirects=False)).status_code in (303, 401)
    assert door.head == ""


async def test_the_page(client):
    """It is there without an engine, says how things are, and offers first questions."""
    text = (await client.get("/playground")).text
    assert 'data-state="idle"' in text
    assert "chat-suggestion" in text


async def test_stop_frees_the_engine_at_once(browser, door):
    """When the page drops its request, the front door sees its own request dropped within a second."""
    door.answer = answer("200 OK", "text/event-stream", b'data: {"choices": []}\n\n')
    door.forever = True
    async with browser.stream("POST", "/playground/chat", json=BODY) as response:
        assert response.status_code == 200
        await anext(response.aiter_raw())
    await asyncio.wait_for(door.gone.wait(), 1)


def test_every_setting_stays_within_what_the_engine_takes():
    """A value that the page lets through is not refused by the engine."""
    for name, row in INPUTS.items():
        least, most = SAMPLING_LIMITS.get(name, (row.minimum, row.maximum))
        assert least <= row.minimum < row.maximum <= most
        assert f"{row.maximum:,.12g}" in row.wanted or name == "seed"
