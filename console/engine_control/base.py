"""What the console may ask of an engine, however it is run."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What runs the engine, as its operating system or Docker sees it. The engine's own state is the front door's to
    tell. `ended` explains the last end: `exit code 1`, `killed by SIGKILL`, `out of memory`; `exit_code` is 0 where the
    end was asked for. `url` is where this engine's front door listens, if that is known better than by the settings."""

    running: bool
    who: str = ""
    since: float | None = None
    ended: str | None = None
    exit_code: int | None = None
    out_of_memory: bool = False
    health: str | None = None
    url: str | None = None


class EngineControlError(Exception):
    """The engine could not be started, stopped or asked; the text says why and what to do."""


@runtime_checkable
class EngineControl(Protocol):
    """Every method answers when the thing asked for has begun: the launch itself is followed at the front door."""

    kind: str

    async def status(self) -> EngineStatus: ...

    async def start(self) -> None:
        """Start the engine; nothing happens when it runs."""

    async def stop(self) -> None:
        """Stop the engine and wait for its end; nothing happens when it does not run."""

    async def restart(self) -> None:
        """Stop the engine if it runs, then start it: it reads the active profile anew."""

    async def logs(self, tail: int = 200) -> list[str]:
        """The last lines that the engine's process wrote itself: what there is when the front door never answered."""

    async def close(self, *, keep_engine: bool = False) -> None:
        """Let go of the engine at the console's end, which ends it too where the console had started it."""
