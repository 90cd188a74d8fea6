"""uvicorn's fast HTTP parser for the front door and the console, with limits on what anybody can do without a key: send
a head of any length, send next to nothing for ever, or open every connection there is."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from appliance.address import network_of

MAX_HEAD_BYTES: Final = 64 << 10
HEAD_TIMEOUT_S: Final = 10.0
"""For a request's line and headers, and for the first request of a connection to begin."""
BODY_SILENCE_S: Final = 15.0
"""A body's sender is cut off after sending nothing for this long."""
BODY_WINDOW_S: Final = 60.0
BODY_WINDOW_BYTES: Final = 1 << 10
"""At least this much of a body, or the rest of it, has to arrive in each window: a byte now and then is not enough."""
PROBES_S: Final = (0.2, 1.0, 4.0, 16.0)
"""After the end of what a client sends, while its answer has not begun; not more, as Go's client bears five."""
LOOKS_EVERY_S: Final = 0.05
LEAVES_AFTER_S: Final = 1.0
"""Who closes only its own side does so right behind its request."""
MOST_OF_ADDRESS: Final = 2048
"""Connections of one address, or half of what this process may open, if that is fewer."""

STILL_THERE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Clients read over it (RFC 9110, 15.2), and the system of one that is gone refuses it."""
TCP_CLOSE: Final = 7  # of linux/tcp.h
FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
"""The headers that say where a body ends."""

TOO_MANY: Final = b"Too many connections are open from this address.\n"
REFUSAL: Final = (
    b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(TOO_MANY), TOO_MANY)
)


class HttpProtocol(HttpToolsProtocol):
    """One connection. No time limit applies while an answer is computed and sent, or while we do not read."""

    _open: ClassVar[Counter[str]] = Counter()
    _network = ""
    _in_head = True
    _head_is_known = False
    """What the parser reads of a head has been read before."""
    _head_bytes = 0
    _body_bytes = 0
    """In the current window."""
    _body_heard = _window_began = 0.0
    _clock: asyncio.TimerHandle | None = None
    _asked_at = 0.0
    """When the last request was complete."""
    _ended_at: float | None = None
    """When the client closed its side, if it may still wait for its answer."""
    _probes = 0
    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _send_at_once(transport)
        self._network = network_of(self.client[0]) if self.client else ""
        self._open[self._network] += 1
        if self._network and self._open[self._network] > _most_of_address():
            transport.write(REFUSAL)
            transport.close()
            return
        self._start_clock(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        if self._look is not None:
            self._look.cancel()
        self._open[self._network] -= 1
        if not self._open[self._network]:
            del self._open[self._network]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        rest = data
        try:
            while rest:
                rest = self._feed(rest)
        except httptools.HttpParserError as error:
            self._refuse(f"The request is not valid HTTP: {str(error).rstrip('.')}.")
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse("The head of the request is too large.")

    def _refuse(self, reason: str) -> None:
        """As the API of the path tells errors, where the request got as far as to name one; without a word where it
        would stand in or before another request's answer, or after its own."""
        cycle = self.cycle
        own = cycle is not None and self._is_in_body(cycle)
        if cycle is not None and cycle.response_complete and own:
            self.transport.close()
            return
        if cycle is not None and not cycle.response_complete and (cycle.response_started or self.pipeline or not own):
            self.transport.abort()
            return
        try:
            path = httptools.parse_url(self.url).path.decode("ascii")
        except (AttributeError, UnicodeDecodeError, httptools.HttpParserError):
            self.send_400_response(reason)
            return
        from appliance.serving.error_shape import error_body  # late: no good request needs the web framework for it
        from appliance.serving.errors import bad_request
        from appliance.serving.request_id import name_request

        scope: Any = {**self.scope, "path": path, "headers": self.headers}
        named = name_request(scope)
        body = error_body(bad_request(reason, code="invalid_http"), scope)
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        head += b"x-request-id: %s\r\nrequest-id: %s\r\ncontent-length: %d\r\n\r\n" % (named, named, len(body))
        self.transport.write(head + body)
        self.transport.close()

    def _is_in_body(self, cycle: RequestResponseCycle) -> bool:
        """Whether what arrives is of its request."""
        return cycle.more_body and cycle.scope is self.scope

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open. A client that sends nothing more is gone, or has closed its own side and
        waits for the answer, which only shows once something is sent to it. One that leaves in the middle of an answer
        is gone."""
        cycle = self.cycle
        waits = cycle is not None and not cycle.more_body and not cycle.response_complete
        if not waits or not _tells_state(self.transport) or self.scope["http_version"] != "1.1":
            return False
        if cycle.response_started and self.loop.time() > self._asked_at + LEAVES_AFTER_S:
            return False
        cycle.keep_alive = False
        if self._ended_at is None:
            self._ended_at = self.loop.time()
            self._look_after_client()
        return True

    def _look_after_client(self) -> None:
        assert self._ended_at is not None
        if _is_reset(self.transport):
            self.transport.abort()
            return
        since = self.loop.time() - self._ended_at
        answered = self.pipeline or self.cycle.response_started
        if not answered and self._probes < len(PROBES_S) and since >= PROBES_S[self._probes]:
            self._probes += 1
            self.transport.write(STILL_THERE)
        self._look = self.loop.call_later(LOOKS_EVERY_S, self._look_after_client)

    def _feed(self, data: bytes) -> bytes:
        """Returns what is still to be read: the parser leaves off behind a head that offers another protocol, such as
        the `Upgrade: h2c` of Java's client. A server may go on in this one (RFC 9110, 7.8): another parser reads the
        body and what follows."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            framing = [header for header in self.headers if header[0] in FRAMING]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
            self._head_is_known = True
            head = [b"%s: %s\r\n" % header for header in framing]
            self.parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *head, b"\r\n"]))
            self._head_is_known = False
            return data[offer.args[0] :]
        return b""

    def on_message_begin(self) -> None:
        if self._head_is_known:
            return
        self._in_head, self._head_bytes = True, 0
        self._start_clock(HEAD_TIMEOUT_S)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._head_is_known:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_is_known:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._head_is_known:
            return
        self._in_head = False
        self._body_heard = self.loop.time()
        self._begin_window()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._body_heard = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # its body is still to come
        self._asked_at = self.loop.time()
        self._stop_clock()
        super().on_message_complete()

    def _start_clock(self, seconds: float) -> None:
        self._stop_clock()
        self._clock = self.loop.call_later(seconds, self._on_time_over)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _begin_window(self) -> None:
        self._body_bytes, self._window_began = 0, self.loop.time()
        self._watch_body()

    def _watch_body(self) -> None:
        """Look at the body again when its sender may have been silent for too long, or the window ends."""
        deadline = min(self._body_heard + BODY_SILENCE_S, self._window_began + BODY_WINDOW_S)
        self._start_clock(deadline - self.loop.time())

    def _on_time_over(self) -> None:
        now = self.loop.time()
        if self.flow.read_paused or (not self._in_head and self.cycle.waiting_for_100_continue):
            self._body_heard = now
            if self._in_head:
                self._start_clock(HEAD_TIMEOUT_S)
            else:
                self._begin_window()
        elif self._in_head or now >= self._body_heard + BODY_SILENCE_S:
            self.transport.abort()  # closing would wait for a client that reads nothing either
        elif now < self._window_began + BODY_WINDOW_S:
            self._watch_body()
        elif self._body_bytes >= BODY_WINDOW_BYTES:
            self._begin_window()
        else:
            self.transport.abort()


def _send_at_once(transport: asyncio.Transport) -> None:
    """Each event as it is written. asyncio does this for sockets that name their protocol, which accepted ones do not:
    then a token waits until the client's system has confirmed the one before, up to 40 ms."""
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _tells_state(transport: asyncio.Transport) -> bool:
    connection: socket.socket | None = transport.get_extra_info("socket")
    return connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6)


def _is_reset(transport: asyncio.Transport) -> bool:
    """Whether the other side has reset the connection, which asyncio does not notice once reading has stopped."""
    connection: socket.socket = transport.get_extra_info("socket")
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE


def _most_of_address() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OF_ADDRESS if files == resource.RLIM_INFINITY else min(MOST_OF_ADDRESS, files // 2)
