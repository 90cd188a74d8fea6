"""A front door that says what a test tells it to: `GET /appliance/state` answers `state`."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from appliance.protocol import ApplianceState


class FrontDoor:
    """Listens on a free port from `start` to `stop`; `token`, where set, is what it asks for as bearer."""

    def __init__(self, state: ApplianceState, token: str = "") -> None:
        self.state = state
        self.token = token
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def start(self) -> FrontDoor:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                door.asked.append(self.path)
                allowed = not door.token or self.headers["Authorization"] == f"Bearer {door.token}"
                body = msgspec.json.encode(door.state) if allowed else b"{}"
                self.send_response(200 if allowed else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                return None

        return Handler
