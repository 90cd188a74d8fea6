"""The client address of a request: for one that came through our proxy, what the proxy reports."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

from litestar import Request

RESOLVED_FOR_S = 10.0
"""Compose restarts a proxy under another address."""


class ClientAddresses:
    """`proxy` is the name of the one proxy whose `X-Forwarded-For` is trusted; empty if there is none."""

    def __init__(self, proxy: str = "") -> None:
        self._proxy = proxy
        self._addresses: frozenset[str] = frozenset()
        self._resolved = -RESOLVED_FOR_S

    async def behind_proxy(self, request: Request[Any, Any, Any]) -> str | None:
        """Whom the proxy asks for; None of a request that did not come through it."""
        forwarded = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
        if not (self._proxy and forwarded and request.client) or request.client.host not in await self._proxies():
            return None
        return forwarded

    async def _proxies(self) -> frozenset[str]:
        if time.monotonic() - self._resolved >= RESOLVED_FOR_S:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(self._proxy, None, type=socket.SOCK_STREAM)
                self._addresses = frozenset(str(row[4][0]) for row in found)
            except OSError:  # no such name now: nobody is believed
                self._addresses = frozenset()
            self._resolved = time.monotonic()
        return self._addresses
