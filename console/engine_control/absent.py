"""The control for an engine that the console does not run: it can be watched, not started."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from appliance.protocol import Finding, Fix, Severity
from console.engine_control.base import TAIL_LINES, EngineControlError, EngineEvent, EngineStatus, OutputLine

NOT_HERE = Finding(
    id="no-engine-control",
    severity=Severity.ERROR,
    message="This console was started with --no-engine and does not run an engine.",
    fix=Fix(text="Start an engine, or restart the console without --no-engine.", command="ingot serve"),
)


class Absent:
    kind = "none"

    async def status(self) -> EngineStatus:
        return EngineStatus(running=False)

    async def start(self) -> None:
        raise EngineControlError(NOT_HERE)

    stop = restart = start

    async def follow(self, tail: int = TAIL_LINES) -> AsyncGenerator[OutputLine]:
        """Its output is not available."""
        return
        yield

    async def events(self) -> AsyncGenerator[EngineEvent]:
        """Its events are not available."""
        return
        yield

    async def close(self, *, keep_engine: bool = False) -> None:
        return None
