"""Checks whether a document could be launched: asks the running front door, which sees the engine's machine and records
a refusal as an attempt; if there is none, runs the same checks in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from appliance.home import Home
from appliance.home_lock import is_held
from appliance.protocol import Finding, LaunchRecord, Severity
from console.access.token import token_header
from console.profiles.errors import EngineUnreachable
from console.profiles.inspection import Inspector

TIMEOUT_S = 30.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What preflight found. `attempt` is the id of the launch that a refusal was recorded as, if it was."""

    findings: list[Finding]
    attempt: str | None = None

    @property
    def refused(self) -> bool:
        return any(finding.severity is Severity.ERROR for finding in self.findings)


class Accepted(msgspec.Struct, frozen=True):
    """The front door's answer for a document that could start, or that it was not to record."""

    findings: list[Finding] = []


class Preflight:
    """`engine_url` returns the front door's current address: an adopted engine may listen elsewhere than the console
    would have started it. None if there is none to ask, as in `ingot profile` without a console."""

    def __init__(self, home: Home, inspector: Inspector, engine_url: Callable[[], str] | None) -> None:
        self._home = home
        self._inspector = inspector
        self._engine_url = engine_url

    async def ask(self, *, launch: str, revision: str, document: dict[str, Any], record: bool = True) -> Verdict:
        """`record`: keep a refusal as an attempt."""
        if self._engine_url is not None:
            url = self._engine_url()
            try:
                verdict = await self._ask_front_door(url, launch, revision, document, record)
            except EngineUnreachable:
                verdict = await asyncio.to_thread(self._of_a_stranger, url, document)
                if verdict is None:
                    raise
            if verdict is not None:
                return verdict
        return Verdict(findings=await asyncio.to_thread(self._inspector.preflight, document))

    def _of_a_stranger(self, url: str, document: dict[str, Any]) -> Verdict | None:
        """A finding if no engine of this state folder is running and another program has its port; otherwise None."""
        address = urlsplit(url)
        if address.hostname not in LOOPBACK or is_held(self._home.lock):
            return None
        findings = self._inspector.preflight(document, listen=(address.hostname, address.port or 80))
        taken = any(finding.field == "port" and finding.severity is Severity.ERROR for finding in findings)
        return Verdict(findings=findings) if taken else None

    async def _ask_front_door(
        self, url: str, launch: str, revision: str, document: dict[str, Any], record: bool
    ) -> Verdict | None:
        """None if nothing answers. Raises EngineUnreachable for an answer that is not a verdict."""
        body = {"launch": launch, "revision": revision, "profile": document, "record": record}
        try:
            async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
                response = await client.post("/appliance/attempts", json=body, headers=token_header(self._home))
        except httpx.ConnectError:
            return None
        except httpx.TransportError as error:
            raise EngineUnreachable(
                f"The engine at {url} did not answer the preflight request: {type(error).__name__}.",
                "Restart the engine, then activate again. Nothing was changed.",
            ) from error
        try:
            if response.status_code == 422:
                refused = msgspec.json.decode(response.content, type=LaunchRecord)
                return Verdict(findings=refused.findings, attempt=refused.id)
            if response.is_success:
                return Verdict(findings=msgspec.json.decode(response.content, type=Accepted).findings)
        except msgspec.MsgspecError as error:
            raise EngineUnreachable(
                f"The engine at {url} sent an unexpected answer to the preflight request: {error}.",
                "Console and engine must have the same version; see /appliance/state. Nothing was changed.",
            ) from error
        raise EngineUnreachable(
            f"The engine at {url} refused the preflight request with status {response.status_code}: "
            f"{response.text[:200]}",
            f"Console and engine must share one state folder: the engine knows this console by "
            f"{self._home.front_door_digest}.",
        )
