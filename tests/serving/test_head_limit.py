"""What comes before a body has an end: nobody needs a key to send it."""

from __future__ import annotations

import contextlib
import socket
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from appliance.serving import http_protocol
from appliance.serving.http_protocol import MAX_HEAD_BYTES
from tests.supervisor.scripted import Door


@pytest.mark.parametrize("line", [b"a: " + b"x" * 1000 + b"\r\n", b"x" * 1000])
def test_a_head_without_an_end_is_cut_off(door: Door, line: bytes) -> None:
    """Many headers, or one that goes on for ever."""
    address = urlsplit(door.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nb: ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 64 * MAX_HEAD_BYTES:
                client.sendall(line)
                sent += len(line)
        assert sent < 64 * MAX_HEAD_BYTES


def test_a_large_head_within_the_limit_is_read(door: Door) -> None:
    address = urlsplit(door.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nb: " + b"x" * 40_000 + b"\r\nconnection: close\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_events_are_sent_as_they_are_written() -> None:
    """None waits until the client's system has confirmed the one before: that may take 40 ms."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert not accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            transport = SimpleNamespace(get_extra_info=lambda _name: accepted)
            http_protocol._send_at_once(transport)  # type: ignore[arg-type]
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
