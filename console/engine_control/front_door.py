"""The console's calls to the front door, whatever runs it: the engine's state, and a drain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import httpx
import msgspec

from appliance.home import Home
from appliance.protocol import ApplianceState, Finding, Fix, Severity
from console.access.token import token_header
from console.engine_control.base import EngineControlError

ANSWERS_WITHIN_S = 2.0


class FrontDoor:
    """`url` returns its current address."""

    def __init__(self, home: Home, url: Callable[[], str]) -> None:
        self._home = home
        self._url = url

    async def state(self) -> ApplianceState | None:
        """None if it does not answer, or not like a front door of this version."""
        try:
            response = await self._send("GET", "/appliance/state")
        except httpx.TransportError:
            return None
        if response.status_code != 200:
            return None
        return msgspec.json.decode(response.content, type=ApplianceState)

    async def stop_now(self, why: str) -> None:
        """End the launch and its requests at once. A front door that does not answer, or is of a version that cannot,
        is about to be ended anyway."""
        with contextlib.suppress(httpx.TransportError):
            await self._send("POST", "/appliance/drain", {"within_s": 0, "why": why})

    async def drain(self, within_s: float, why: str) -> ApplianceState | None:
        """Refuse new requests, and end those in flight after `within_s` seconds. None if it does not answer: nothing is
        in flight then. Raises EngineControlError if it refuses."""
        try:
            response = await self._send("POST", "/appliance/drain", {"within_s": within_s, "why": why})
        except httpx.TransportError:
            return None
        if response.status_code != 202:
            raise EngineControlError(
                Finding(
                    id="drain-refused",
                    severity=Severity.ERROR,
                    message=f"The engine could not be drained: it answered with status {response.status_code}.",
                    fix=Fix(
                        text="Console and engine must have the same version and share a state folder. "
                        "To end requests at once, choose Now."
                    ),
                )
            )
        return msgspec.json.decode(response.content, type=ApplianceState)

    async def _send(self, method: str, path: str, body: object = None) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self._url(), timeout=ANSWERS_WITHIN_S, trust_env=False) as client:
            return await client.request(method, path, json=body, headers=token_header(self._home))
