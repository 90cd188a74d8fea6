"""A Docker daemon on a socket, with one container, for failures that no real one can be brought to: it speaks the seven
calls that the gate lets through, in the words and bytes of Docker 26."""

from __future__ import annotations

import asyncio
import json
import re
import struct
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RUNNING: dict[str, Any] = {"Status": "running", "Running": True, "ExitCode": 0, "OOMKilled": False, "Error": ""}
EXITED: dict[str, Any] = RUNNING | {"Status": "exited", "Running": False}


class FakeDocker:
    """`state` is what `docker inspect` says of it, `lines` what the container wrote as (stamp, source, text). `refuse`
    maps a call, such as "start", to the (status, message) that it is answered with; `asked` keeps every request line.
    While it is `silent` nothing is answered."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "docker.sock"
        self.environ = {"DOCKER_HOST": f"unix://{self.socket}"}
        self.id = "e8efd4da"
        self.state: dict[str, Any] = RUNNING | {"StartedAt": "2026-11-20T09:51:45.123456789Z"}
        self.settings: dict[str, Any] = {"Memory": 0}
        self.restarts = 0
        self.media_type = "application/vnd.docker.multiplexed-stream"
        self.lines: list[tuple[str, int, str]] = []
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.refuse: dict[str, tuple[int, str]] = {}
        self.asked: list[str] = []
        self.silent = False
        self.cut_after: int | None = None
        """Bytes of a log's stream after which the connection breaks, once."""
        self._answering: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(self.socket))

    async def stop(self) -> None:
        """As a daemon that ends: every connection breaks, and nobody listens."""
        assert self._server is not None
        self._server.close()
        for task, writer in list(self._answering.items()):
            writer.transport.abort()
            task.cancel()
        self.socket.unlink(missing_ok=True)

    def wrote(self, stamp: str, text: str, source: int = 1) -> None:
        self.lines.append((stamp, source, text))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering[task] = writer
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, target, _ = head.split("\r\n")[0].split(" ")
                self.asked.append(f"{method} {target}")
                if self.silent:
                    await asyncio.sleep(60)
                await self._answer(writer, target.partition("?")[0].rpartition("/")[2], target)
                await writer.drain()
        del self._answering[task]
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, call: str, target: str) -> None:
        if call in self.refuse:
            status, message = self.refuse[call]
            return _send(writer, status, {"message": message})
        if call == "json":
            about = {"Id": self.id, "Name": "/ingot-engine", "State": self.state, "RestartCount": self.restarts}
            return _send(writer, 200, about | {"HostConfig": self.settings})
        if call == "logs":
            return await self._log(writer, target)
        if call == "events":
            _begin(writer, "application/json")
            while True:
                _chunk(writer, json.dumps(await self.events.get()).encode() + b"\n")
                await writer.drain()
        return _send(writer, 204, None)

    async def _log(self, writer: asyncio.StreamWriter, target: str) -> None:
        """Follows while the container runs; `since` gives that very moment again, as Docker does."""
        _begin(writer, self.media_type)
        since = re.search(r"since=(\d+)\.(\d{9})", target)
        tail = re.search(r"tail=(\d+)", target)
        told = max(len(self.lines) - int(tail[1]), 0) if tail else 0
        sent = 0
        while True:
            for stamp, source, text in self.lines[told:]:
                if since and stamp < _stamp(since):
                    continue
                piece = f"{stamp} {text}".encode()
                framed = struct.pack(">BxxxL", source, len(piece)) + piece if "multi" in self.media_type else piece
                if self.cut_after is not None and sent + len(framed) > self.cut_after:
                    _chunk(writer, framed[: self.cut_after - sent])
                    await writer.drain()
                    self.cut_after = None
                    writer.transport.abort()
                    return
                _chunk(writer, framed)
                sent += len(framed)
            told = len(self.lines)
            await writer.drain()
            if not self.state["Running"]:
                writer.write(b"0\r\n\r\n")
                return
            await asyncio.sleep(0.02)


def _stamp(since: re.Match[str]) -> str:
    return f"{datetime.fromtimestamp(int(since[1]), UTC):%Y-%m-%dT%H:%M:%S}.{since[2]}Z"


def _begin(writer: asyncio.StreamWriter, media_type: str) -> None:
    writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _send(writer: asyncio.StreamWriter, status: int, body: Any) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Docker\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write((head if status != 204 else "HTTP/1.1 204 Docker\r\n\r\n").encode() + data)
