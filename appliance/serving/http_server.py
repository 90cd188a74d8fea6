"""The HTTP server of the front door and of the console: uvicorn with our protocol, in a process that has more to end
than one server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn

from appliance.serving.http_protocol import HttpProtocol

CLOSE_STREAMS_S = 1
"""Streams that are still open when everything else has ended are cut after this."""


class Server(uvicorn.Server):
    """Signals are left to whoever runs it: a stop has to drain the engine first, or to close the pages' streams."""

    def __init__(self, app: Any, **settings: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpProtocol,
                ws="none",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=CLOSE_STREAMS_S,
                **settings,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
