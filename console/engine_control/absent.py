"""The control for an engine that somebody else runs: it can be watched, not started."""

from __future__ import annotations

from console.engine_control.base import EngineControlError, EngineStatus


class Absent:
    kind = "none"

    async def status(self) -> EngineStatus:
        return EngineStatus(running=False)

    async def start(self) -> None:
        raise EngineControlError(
            "This console does not run an engine: it was started with --no-engine. Start an engine with "
            "`ingot serve`, or start the console again without --no-engine."
        )

    stop = restart = start

    async def logs(self, tail: int = 200) -> list[str]:
        return []

    async def close(self, *, keep_engine: bool = False) -> None:
        return None
