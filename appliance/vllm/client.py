"""Requests in flight to vLLM: sent, counted, and failed with a reason when vLLM is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from appliance.engine_process.errors import EngineGoneError, TooManyRequestsError
from appliance.vllm.http import Answer, Headers, UpstreamGoneError, ask

MAX_IN_FLIGHT = 4096
# An answer that breaks off is noticed before the end of the process that gave it is understood.
REASON_S = 5.0


class VllmClient:
    """Usable once vLLM serves. `fail` ends every request."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._open: set[Answer] = set()
        self._asking = 0
        self._gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        return len(self._open) + self._asking

    async def idle(self) -> None:
        """Returns when nothing is in flight."""
        await self._idle.wait()

    async def ask(self, method: str, target: bytes, headers: Headers, body: bytes | None) -> Answer:
        """`release` it, whatever happens. Raises EngineGoneError, TooManyRequestsError."""
        if self.in_flight >= MAX_IN_FLIGHT:
            raise TooManyRequestsError(f"{MAX_IN_FLIGHT:,} requests are already running or waiting")
        self._asking += 1
        self._idle.clear()
        try:
            answer = await ask(self.socket, method, target, headers, body)
            self._open.add(answer)
        except UpstreamGoneError as error:
            raise await self.gone(error) from error
        finally:
            self._asking -= 1
            self._settle()
        return answer

    def release(self, answer: Answer) -> None:
        """Closing the connection tells vLLM, where it still generates, that nobody wants more."""
        answer.close()
        self._open.discard(answer)
        self._settle()

    async def gone(self, error: UpstreamGoneError) -> EngineGoneError:
        """Why vLLM broke off, as far as that becomes known soon."""
        done, _ = await asyncio.wait({self._gone}, timeout=REASON_S)
        return EngineGoneError(self._gone.result() if done else f"vLLM: {error}")

    def fail(self, reason: str) -> None:
        """vLLM is gone: waiting requests fail with the reason, and new ones are refused."""
        if not self._gone.done():
            self._gone.set_result(reason)
        for answer in self._open:
            answer.close()

    def _settle(self) -> None:
        if self.in_flight == 0:
            self._idle.set()
