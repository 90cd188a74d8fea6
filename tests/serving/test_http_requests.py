"""Requests as some clients send them: with an offer of another protocol, a mark before the body, in odd pieces."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import urllib.parse

import pytest

from tests.supervisor.scripted import Door

BODY = json.dumps({"prompt": "hello", "max_tokens": 3}).encode()
OFFERS = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n",
}
CHUNKED = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (BODY[:5], BODY[5:])) + b"0\r\n\r\n"


def post(headers: bytes = b"", body: bytes = BODY, *, chunked: bool = False) -> bytes:
    framing = b"Transfer-Encoding: chunked\r\n" if chunked else b"Content-Length: %d\r\n" % len(body)
    return b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + framing + b"\r\n" + body


def statuses(door: Door, pieces: list[bytes], answers: int) -> list[int]:
    """Of so many answers on one connection."""
    address = urllib.parse.urlsplit(door.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
        with connection.makefile("rb") as stream:
            found = []
            for _ in range(answers):
                found.append(int(stream.readline().split()[1]))
                length = 0
                while line := stream.readline().strip():
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                stream.read(length)
    return found


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("whole", [True, False], ids=["at once", "byte by byte"])
def test_an_offer_of_another_protocol_is_declined_and_the_body_read(
    door: Door, offer: str, chunked: bool, whole: bool
) -> None:
    """Java's client makes it by default. The connection goes on."""
    request = post(OFFERS[offer], CHUNKED if chunked else BODY, chunked=chunked)
    both = request + post()
    assert statuses(door, [both] if whole else [both[at : at + 1] for at in range(len(both))], 2) == [200, 200]


def test_offers_in_a_row_are_declined_one_by_one(door: Door) -> None:
    get = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n" + OFFERS["h2c"] + b"\r\n"
    assert statuses(door, [get * 5 + post(OFFERS["h2c"])], 6) == [200] * 6


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (b"", b"\xef\xbb\xbf" + BODY, 200),
        (b"Content-Encoding: identity\r\n", BODY, 200),
        (b"Content-Encoding: gzip\r\n", gzip.compress(BODY), 415),
        (b"Content-Encoding: br\r\n", BODY, 415),
        (b"Content-Encoding: utf-8, X-GZIP\r\n", BODY, 415),
        (b"Content-Encoding: identity\r\nContent-Encoding: zstd\r\n", BODY, 415),
        (b"Content-Encoding: utf-8\r\n", BODY, 200),
        (b"Content-Encoding: UTF-8, identity\r\n", BODY, 200),
        (b"", b"", 400),
        (b"", BODY.decode().encode("utf-16"), 400),
    ],
    ids=["mark", "identity", "gzip", "br", "second", "second line", "utf-8", "two", "empty", "utf-16"],
)
def test_bodies_as_systems_write_them(door: Door, headers: bytes, body: bytes, status: int) -> None:
    assert statuses(door, [post(headers, body), post()], 2) == [status, 200]


def test_the_root_says_that_somebody_answers(door: Door) -> None:
    """Ollama's clients ask there before anything else."""
    assert door.http.get("/").status_code == 200
    assert door.http.head("/").status_code == 200


@pytest.mark.parametrize("coding", ["utf-8", "gzip"])
def test_a_request_without_a_body_is_not_refused_for_its_coding(door: Door, coding: str) -> None:
    """Clients that set it for all their requests."""
    for path in ("/health", "/v1/models"):
        assert door.http.get(path, headers={"Content-Encoding": coding}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/appliance/attempts"])
def test_a_compressed_body_is_refused_whether_it_is_chunked_or_not(door: Door, path: str) -> None:
    for content in (gzip.compress(BODY), iter([gzip.compress(BODY)])):
        assert door.http.post(path, content=content, headers={"Content-Encoding": "gzip"}).status_code == 415


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/api/chat"])
@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: x",
        b"Content-Length: -5",
        b"Content-Length: 5.0",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Content-Length: 99999999999999999999999",
        b"Transfer-Encoding: chunked\r\n\r\nxyz",
    ],
)
def test_a_length_that_is_none_is_told_as_the_api_tells_errors(door: Door, path: str, framing: bytes) -> None:
    """And the connection ends, as nobody knows where the next request would begin."""
    address = urllib.parse.urlsplit(door.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n{}" % (path.encode(), framing))
        with connection.makefile("rb") as stream:
            head, _, body = stream.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert b"x-request-id: " in head
    told = json.loads(body)
    error = told["error"]
    if path == "/api/chat":
        assert isinstance(error, str)
    else:
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_http")
        assert ("request_id" in told) == (path == "/v1/messages")


@pytest.mark.parametrize("before", [post(), post(headers=b"Expect: 100-continue\r\n") + post()])
@pytest.mark.parametrize("malformed", [b"GET bad\r\n\r\n", b"\0", post(b"Content-Length: x\r\n")])
def test_what_is_malformed_is_not_told_within_the_answer_to_another(
    door: Door, before: bytes, malformed: bytes
) -> None:
    """The connection ends: its client would take it for the answer that it waits for."""
    address = urllib.parse.urlsplit(door.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.sendall(before + malformed)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(1 << 16):
                received += data
    assert b" 400 " not in received


def test_what_is_malformed_behind_an_answer_is_told(door: Door) -> None:
    address = urllib.parse.urlsplit(door.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        received = connection.recv(1 << 16)
        while not received.partition(b"\r\n\r\n")[2]:
            received += connection.recv(1 << 16)
        connection.sendall(b"GET bad\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
