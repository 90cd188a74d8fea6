"""Asks the console that runs on this state folder to activate, so that the engine restarts."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from appliance.home import Home
from appliance.protocol import Finding
from console import address
from console.access.token import program_header
from console.profiles.activator import Activated
from console.profiles.errors import EngineUnreachable, ProfileRefusal, Refused, Undecided

TIMEOUT_S = 120.0
"""Stopping an engine that drains its requests takes a while."""


class _Refusal(msgspec.Struct, frozen=True):
    message: str
    remedy: str = ""
    field: str | None = None
    value: Any = None
    profile: str = ""
    revision: int = 0
    findings: list[Finding] = []
    attempt: str | None = None


class RunningConsole:
    """Every method returns None if no console is running. `when` is the field of that name; if it is empty and requests
    are running, Undecided is raised."""

    def __init__(self, home: Home) -> None:
        self._home = home

    async def activate(self, name: str, number: int, *, anyway: bool, when: str) -> Activated | None:
        data = {"revision": str(number), "anyway": "yes" if anyway else "", "when": when}
        return await self._ask(f"/profiles/{name}/activate", data)

    async def roll_back(self, *, when: str) -> Activated | None:
        return await self._ask("/profiles/-/roll-back", {"when": when})

    async def _ask(self, path: str, data: dict[str, str]) -> Activated | None:
        url = address.find(self._home)
        if url is None:
            return None
        headers = {"Accept": "application/json", **program_header(self._home)}
        try:
            async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
                response = await client.post(path, data=data, headers=headers)
        except httpx.ConnectError:
            return None
        except httpx.TransportError as error:
            raise EngineUnreachable(
                f"The console at {url} did not answer: {type(error).__name__}.",
                "Check its page: the activation may be in progress.",
            ) from error
        try:
            if response.is_success:
                return msgspec.json.decode(response.content, type=Activated)
            said = msgspec.json.decode(response.content, type=_Refusal)
        except msgspec.MsgspecError as error:
            raise EngineUnreachable(
                f"The server at {url} (status {response.status_code}) is not a console of this version.",
                "Stop it. If it is another program, delete console.json from the state folder.",
            ) from error
        if said.findings:
            raise Refused(said.profile, said.revision, said.findings, said.attempt)
        if said.field == "when":
            raise Undecided(said.message)
        raise ProfileRefusal(said.message, said.remedy, field=said.field, value=said.value)
