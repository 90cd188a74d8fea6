"""What the load generator reads from answers, whatever pieces they come in, and how it counts those that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from appliance.bench.answers import Answer, RequestFailedError, ask
from appliance.bench.connection import Pool
from appliance.bench.server import Form
from appliance.bench.target import read_url
from tests.bench import stand_in

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LINE = b'data: {"choices": [{"text": "a"}]}\n\n'


async def asked(body: bytes, handler: Handler = stand_in.answer, times: int = 1, timeout_s: float = 10) -> list[Answer]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        pool = Pool(read_url(f"http://{host}:{port}"))
        try:
            return [await ask(pool, "/completions", body, timeout_s) for _ in range(times)]
        finally:
            pool.close()


def sends(answer: bytes) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(answer)
        writer.close()

    return handler


def chunked(*parts: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(
        b"%x\r\n%s\r\n" % (len(part), part) for part in parts
    )


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_tokens_are_counted_whatever_the_chunks_that_carry_them(api):
    """A chat's role is no token."""
    (got,) = await asked(Form(api, "m").body("one two three", 5))
    assert (len(got.events), got.tokens, got.prompt_tokens) == (5, 5, 3)
    assert got.sent <= got.events[0] <= got.events[-1]


async def test_a_reason_alone_is_no_token_and_events_count_where_usage_is_not_told():
    last = b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\n'
    (got,) = await asked(b"{}", sends(chunked(LINE, LINE, last) + b"0\r\n\r\n"))
    assert (len(got.events), got.tokens, got.usage_told) == (2, 2, False)


async def test_reasoning_and_tool_calls_are_tokens():
    deltas = [{"role": "assistant"}, {"reasoning_content": "a"}, {"reasoning": "b"}, {"tool_calls": [{"index": 0}]}]
    parts = [f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n".encode() for delta in deltas]
    (got,) = await asked(b"{}", sends(chunked(*parts) + b"0\r\n\r\n"))
    assert len(got.events) == 3


async def test_a_body_without_a_length_ends_with_its_connection():
    (got,) = await asked(b"{}", sends(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + LINE * 3))
    assert len(got.events) == 3


async def test_connections_are_kept_and_one_that_was_closed_while_idle_is_replaced():
    opened = 0

    async def keeps(reader, writer):
        nonlocal opened
        opened += 1
        for _ in range(2):  # and then closes
            await reader.readuntil(b"{}")
            writer.write(chunked(LINE) + b"0\r\n\r\n")
            await writer.drain()
        writer.close()

    assert len(await asked(b"{}", keeps, times=5)) == 5
    assert opened == 3


REFUSED = b'HTTP/1.1 429 X\r\ncontent-length: 35\r\n\r\n{"error": {"message": "too many"}}  '


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (REFUSED, "HTTP 429", "too many"),
        (b"HTTP/1.1 500 X\r\ncontent-length: 4\r\n\r\noops", "HTTP 500", "oops"),
        (chunked(LINE), "connection broken", ""),
        (b"", "connection broken", ""),
        (b"no HTTP at all\r\n\r\n", "connection broken", ""),
        (chunked(LINE, b'data: {"error": {"message": "out of memory"}}\n\n'), "error in the stream", "out of memory"),
        (chunked(b"data: {broken\n\n"), "not a stream", "{broken"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{'a': 1}\n", "no token", "{'a': 1}"),
    ],
)
async def test_an_answer_that_fails_is_counted_by_its_kind(answer, kind, said):
    with pytest.raises(RequestFailedError) as failed:
        await asked(b"{}", sends(answer))
    assert failed.value.kind == kind
    assert said in str(failed.value)


async def test_a_server_that_is_silent_or_away_fails_its_requests():
    async def silent(reader, writer):
        await reader.read()
        writer.close()

    with pytest.raises(RequestFailedError) as failed:
        await asked(b"{}", silent, timeout_s=0.05)
    assert failed.value.kind == "timeout"
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(RequestFailedError) as failed:
        await ask(Pool(read_url(f"http://127.0.0.1:{port}")), "/completions", b"{}", 5)
    assert failed.value.kind == "cannot connect"


async def test_a_line_without_end_is_refused_instead_of_kept(monkeypatch):
    monkeypatch.setattr("appliance.bench.answers.MOST_LINE_BYTES", 1000)
    with pytest.raises(RequestFailedError) as failed:
        await asked(b"{}", sends(chunked(b"data: " + b"x" * 2000)))
    assert failed.value.kind == "not a stream"
