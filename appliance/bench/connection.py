"""HTTP/1.1 for a load generator: connections that are kept between requests, and bodies handed on as they arrive."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Final, cast

import httptools

from appliance.bench.target import Target

CONNECT_TIMEOUT_S: Final = 10.0

OnBody = Callable[[int, bytes, float], None]
"""Takes the status, a piece of the body, and when it came."""


class ConnectionFailedError(OSError):
    """The server cannot be connected to. `remedy` is what to do about it."""

    def __init__(self, why: str, remedy: str = "Check the address, and that the server runs.") -> None:
        super().__init__(why)
        self.remedy = remedy


class ConnectionBrokenError(OSError):
    """The connection ended before the answer did, or what came is not HTTP."""


class Head:
    """How a server answered, without the body."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}


class Pool:
    """Idle connections to one server. A request takes one of them, or opens its own."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._idle: list[_Connection] = []

    async def send(self, method: str, path: str, body: bytes, on_body: OnBody) -> Head:
        """Returns once the body has been handed to `on_body`. Raises ConnectionFailedError, ConnectionBrokenError, and
        what `on_body` raises."""
        message = self.target.head(method, path, len(body)) + body
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                try:
                    return await self._exchange(connection, message, on_body)
                except ConnectionBrokenError:
                    if connection.has_answered:
                        raise
                    # The server closed it while it was idle: ask again.
        return await self._exchange(await self._connect(), message, on_body)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _exchange(self, connection: _Connection, message: bytes, on_body: OnBody) -> Head:
        try:
            head = await connection.exchange(message, on_body)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return head

    async def _connect(self) -> _Connection:
        host, port, tls = self.target.host, self.target.port, self.target.tls
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(_Connection, host, port, ssl=tls)
        except TimeoutError:
            raise ConnectionFailedError(f"no answer to a connection within {CONNECT_TIMEOUT_S:g} s") from None
        except ssl.SSLCertVerificationError as error:
            why = f"its certificate is not trusted: {error.verify_message}"
            raise ConnectionFailedError(why, "Name the certificate of its authority in SSL_CERT_FILE.") from None
        except UnicodeError:
            raise ConnectionFailedError(f"{host} is not a valid host name") from None
        except OSError as error:
            raise ConnectionFailedError(error.strerror or str(error)) from None
        return connection


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self.is_open = True
        self.has_answered = False
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Head] | None = None
        self._on_body: OnBody | None = None
        self._head = Head()
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0

    async def exchange(self, message: bytes, on_body: OnBody) -> Head:
        assert self._transport is not None
        self._head, self.has_answered, self._on_body = Head(), False, on_body
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        return await self._done

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # ----------------------------------------------------------------------------------------------------------------
    # asyncio calls these
    # ----------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ if isinstance(error.__context__, Exception) else error)
        except httptools.HttpParserError as error:
            self._fail(ConnectionBrokenError(f"the answer is not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._ends_with_connection:
            self.on_message_complete()
        self._fail(ConnectionBrokenError("the server closed the connection before its answer ended"))

    @property
    def _ends_with_connection(self) -> bool:
        """Neither a length nor chunks say where the body ends."""
        headers = self._head.headers
        return bool(self._head.status) and "content-length" not in headers and "transfer-encoding" not in headers

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        self.close()

    # ----------------------------------------------------------------------------------------------------------------
    # The parser calls these
    # ----------------------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._head.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        assert self._on_body is not None
        self._on_body(self._head.status, body, self._now)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        if self._done is not None and not self._done.done():
            self._done.set_result(self._head)
