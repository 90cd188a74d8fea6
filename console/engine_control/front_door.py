"""The console's calls to the front door, whatever runs it: the engine's state, and a drain."""

from __future__ import annotations

import contextlib
import enum

import httpx
import msgspec

from appliance.home import Home
from appliance.protocol import ApplianceState, Finding, Fix, Severity
from console.access.token import token_header
from console.engine_control.base import EngineControlError

ANSWERS_WITHIN_S = 2.0


class NoState(enum.Enum):
    """Why there is no state. GONE: nothing listens, so no request is in flight. UNKNOWN: the front door was too slow,
    or did not answer like one of this version; requests may be in flight."""

    GONE = "gone"
    UNKNOWN = "unknown"


class FrontDoorClient:
    """`client` has the front door's current address as its base URL."""

    def __init__(self, home: Home, client: httpx.AsyncClient) -> None:
        self._home = home
        self._client = client

    async def state(self) -> ApplianceState | NoState:
        try:
            response = await self._send("GET", "/appliance/state")
        except httpx.TransportError as error:
            return _no_state(error)
        return _decoded(response) if response.status_code == 200 else NoState.UNKNOWN

    async def stop_now(self, why: str) -> None:
        """End the launch and its requests at once. A front door that does not answer, or is of a version that cannot,
        is about to be ended anyway."""
        with contextlib.suppress(httpx.TransportError):
            await self._send("POST", "/appliance/drain", {"within_s": 0, "why": why})

    async def drain(self, within_s: float, why: str) -> ApplianceState | NoState:
        """Refuse new requests, and end those in flight after `within_s` seconds. UNKNOWN leaves open whether it has
        begun. Raises EngineControlError if it refuses."""
        try:
            response = await self._send("POST", "/appliance/drain", {"within_s": within_s, "why": why})
        except httpx.TransportError as error:
            return _no_state(error)
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
        return _decoded(response)

    async def _send(self, method: str, path: str, body: object = None) -> httpx.Response:
        headers = token_header(self._home)
        return await self._client.request(method, path, json=body, headers=headers, timeout=ANSWERS_WITHIN_S)


def _no_state(error: httpx.TransportError) -> NoState:
    return NoState.GONE if isinstance(error, httpx.ConnectError) else NoState.UNKNOWN


def _decoded(response: httpx.Response) -> ApplianceState | NoState:
    try:
        return msgspec.json.decode(response.content, type=ApplianceState)
    except msgspec.MsgspecError:
        return NoState.UNKNOWN
