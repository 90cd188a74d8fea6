"""A front door with requests in flight, which drains as a test tells it to."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from appliance.protocol import ApplianceState, LaunchRecord, State


class Door:
    """A front door that serves `requests`; a drain goes on until the test lets them finish. A chat gets `deltas` and
    `words` at once and no end until `answered` is set. While `silent`, it accepts connections and never answers them;
    while `garbled`, it answers like a front door of another version."""

    def __init__(self) -> None:
        self.state = State.READY
        self.requests = self.asked = 0
        self.launch: LaunchRecord | None = None
        self.until: float | None = None
        self.drains: list[float] = []
        self.whys: list[str] = []
        self.refuses = 0
        self.deltas: list[dict[str, Any]] = []
        self.words: list[str] = []
        self.chats: list[dict[str, Any]] = []
        self.answered = threading.Event()
        self.silent = self.garbled = False
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                door.asked += 1
                if door.silent:
                    door.answered.wait(20)
                    return
                self._answer(200)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path == "/v1/chat/completions":
                    door.chats.append(body)
                    self._stream()
                    return
                if door.silent:
                    door.answered.wait(20)
                    return
                if self.path == "/appliance/attempts":
                    self._send(200, b'{"findings": []}')
                    return
                within_s = body["within_s"]
                if door.refuses:
                    self._answer(door.refuses)
                    return
                door.drains.append(within_s)
                door.whys.append(body["why"])
                if not within_s:
                    door.requests = 0
                door.until = time.time() + within_s
                door.state = State.DRAINING if door.requests else State.STOPPED
                self._answer(202)

            def _stream(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for delta in [*door.deltas, *({"content": word} for word in door.words)]:
                    chunk = {"choices": [{"delta": delta}]}
                    self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                self.wfile.flush()
                door.answered.wait(20)

            def _answer(self, status: int) -> None:
                told = ApplianceState(
                    state=door.state,
                    since=1.0,
                    version="0",
                    launch=door.launch,
                    requests=door.requests,
                    drain_until=door.until,
                )
                self._send(status, b'{"state": "resting"}' if door.garbled else msgspec.json.encode(told))

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    async def asked_again(self, times: int) -> None:
        """Returns once somebody has asked for its state so often."""
        until = self.asked + times
        async with asyncio.timeout(20):
            while self.asked < until:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def finish(self) -> None:
        """The last of its requests has come to its end."""
        self.requests, self.state, self.until = 0, State.STOPPED, None

    def close(self) -> None:
        self.answered.set()
        self._server.shutdown()
        self._server.server_close()
