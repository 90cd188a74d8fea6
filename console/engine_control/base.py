"""The interface for controlling an engine, however it is run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from appliance.protocol import Finding

TAIL_LINES = 500
"""How many lines of earlier output a new follower receives."""


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's process or container, as its operating system or Docker sees it; the engine's own state comes from
    the front door. `since` is when the current or last run began, and
    `output_since` the time of its first output at the earliest. `ended` explains the last end: `exit status 1`,
    `killed by SIGKILL`, `out of memory`; `exit_code` is 0 if the end was requested. `url` is this engine's front door,
    if known better than from the settings. `problem` is what keeps it from running as it should, if known, with its
    fix."""

    running: bool
    who: str = ""
    since: float | None = None
    output_since: float | None = None
    ended: str | None = None
    exit_code: int | None = None
    out_of_memory: bool = False
    health: str | None = None
    url: str | None = None
    problem: Finding | None = None


class OutputLine(NamedTuple):
    """A line of the engine process's own output; `at` is when it was written, or else when it was read."""

    at: float
    text: str


class EngineEvent(NamedTuple):
    """An event of the engine's process or container: `started`, `ended: exit status 3`. `failed`: it is a failure that
    nobody requested."""

    at: float
    text: str
    failed: bool = False


class EngineControlError(Exception):
    """The engine could not be started, stopped or queried; `finding` says why and what to do, as does the text."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(" ".join(filter(None, (finding.message, self.remedy))))

    @property
    def remedy(self) -> str:
        """The fix as text."""
        fix = self.finding.fix
        if fix is None:
            return ""
        command = fix.command or fix.look
        return f"{fix.text} (`{command}`)" if command else fix.text


@runtime_checkable
class EngineControl(Protocol):
    """Every method returns once the operation has begun; the launch itself is followed through the front door."""

    kind: str

    async def status(self) -> EngineStatus: ...

    async def start(self) -> None:
        """Start the engine; does nothing if it is running."""

    async def stop(self) -> None:
        """Stop the engine and wait for its end; does nothing if it is not running."""

    async def restart(self) -> None:
        """Stop the engine if it is running, then start it with the active profile."""

    def follow(self, tail: int = TAIL_LINES) -> AsyncGenerator[OutputLine]:
        """The last `tail` lines of the engine process's own output, then each new one, once: from before its front door
        starts, and across every restart, until the generator is closed."""

    def events(self) -> AsyncGenerator[EngineEvent]:
        """Events of the engine's process from now on, until the generator is closed."""

    async def close(self, *, keep_engine: bool = False) -> None:
        """Release the engine when the console ends; this ends an engine that the console started."""
