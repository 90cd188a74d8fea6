"""HTTP over vLLM's Unix socket: a request, and its answer as it comes, byte for byte.

One connection a request: on a Unix socket that costs a tenth of a millisecond, no answer can be taken for another's,
and closing it is how vLLM learns that nobody waits any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import httptools

# Where a reader is slower than vLLM: reading stops at this many bytes, and goes on when they have been taken.
HIGH_WATER_BYTES = 256 * 1024

# vLLM's answer to a path that it does not have, or not with this model.
NO_ROUTE = b'{"detail":"Not Found"}'

Headers = Sequence[tuple[bytes, bytes]]


class UpstreamGoneError(ConnectionError):
    """vLLM cannot be connected to, or its answer ended in the middle; the message says which."""


class Answer(asyncio.Protocol):
    """The answer to one request: `status` and `headers` once `head` has returned, then the body in pieces as they
    arrived. `close` it, whatever happens."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._held = 0
        self._paused = False
        self._headers_done = False
        self._complete = False
        self._problem: str | None = None
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    # ----------------------------------------------------------------------------------------------------------------
    # For whoever asked
    # ----------------------------------------------------------------------------------------------------------------

    async def head(self) -> None:
        """Returns when status and headers are there. Raises UpstreamGoneError."""
        while not self._headers_done:
            if self._problem is not None:
                raise UpstreamGoneError(self._problem)
            await self._more()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body to its end. Raises UpstreamGoneError where that does not come."""
        while True:
            if self._pieces:
                piece = b"".join(self._pieces)
                self._pieces.clear()
                self._held = 0
                self._resume()
                yield piece
            elif self._complete:
                return
            elif self._problem is not None:
                raise UpstreamGoneError(self._problem)
            else:
                await self._more()

    async def send(self, data: bytes) -> None:
        """More of the request's body."""
        assert self._transport is not None
        self._transport.write(data)
        await self._writable.wait()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _more(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._transport.resume_reading()

    # ----------------------------------------------------------------------------------------------------------------
    # asyncio calls these
    # ----------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # it is one, of whichever loop

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._problem = f"its answer is not HTTP: {error}"
            self.close()
        self._news.set()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        if not self._complete and self._problem is None:
            self._problem = "it closed the connection in the middle of its answer"
        self._writable.set()
        self._news.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # ----------------------------------------------------------------------------------------------------------------
    # The parser calls these
    # ----------------------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._headers_done = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._held += len(body)
        if self._held >= HIGH_WATER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        self._complete = True


async def ask(socket: Path, method: str, target: bytes, headers: Headers = (), body: bytes | None = b"") -> Answer:
    """Send a request; `body` None where the caller sends it in parts, having named its length in `headers`. Raises
    UpstreamGoneError where nobody listens."""
    loop = asyncio.get_running_loop()
    try:
        _, answer = await loop.create_unix_connection(Answer, str(socket))
    except OSError as error:
        raise UpstreamGoneError(f"cannot connect: {error.strerror or error}") from None
    lines = [method.encode() + b" " + target + b" HTTP/1.1", b"host: vllm", b"connection: close"]
    lines += [name + b": " + value for name, value in headers]
    if body is not None and (body or method == "POST"):
        lines.append(b"content-length: %d" % len(body))
    await answer.send(b"\r\n".join(lines) + b"\r\n\r\n" + (body or b""))
    return answer


async def fetch(
    socket: Path, target: str, body: bytes | None = None, *, content_type: str = "application/json", timeout_s: float
) -> tuple[int, bytes]:
    """Status and whole body of a GET, or of a POST of `body`. Raises UpstreamGoneError, TimeoutError."""
    headers = [] if body is None else [(b"content-type", content_type.encode())]
    async with asyncio.timeout(timeout_s):
        answer = await ask(socket, "GET" if body is None else "POST", target.encode(), headers, body or b"")
        try:
            await answer.head()
            return answer.status, b"".join([piece async for piece in answer.pieces()])
        finally:
            answer.close()
