"""The control for an engine that somebody else runs: it can be watched, not started."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from appliance.protocol import Finding, Fix, Severity
from console.engine_control.base import TAIL_LINES, EngineControlError, EngineEvent, EngineStatus, OutputLine

NOT_HERE = Finding(
    id="no-engine-control",
    severity=Severity.ERROR,
    message="This console does not run an engine: it was started with --no-engine.",
    fix=Fix(text="Start an engine, or start the console again without --no-engine.", command="ingot serve"),
)


class Absent:
    kind = "none"

    async def status(self) -> EngineStatus:
        return EngineStatus(running=False)

    async def start(self) -> None:
        raise EngineControlError(NOT_HERE)

    stop = restart = start

    async def follow(self, tail: int = TAIL_LINES) -> AsyncGenerator[OutputLine]:
        """What it writes is not ours to read."""
        return
        yield

    async def events(self) -> AsyncGenerator[EngineEvent]:
        """What happens to it nobody tells us."""
        return
        yield

    async def close(self, *, keep_engine: bool = False) -> None:
        return None
