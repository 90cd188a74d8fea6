"""What the console may ask of an engine, however it is run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from appliance.protocol import Finding

TAIL_LINES = 500
"""Of what the engine wrote before anybody followed it, so many lines are told."""


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What runs the engine, as its operating system or Docker sees it. The engine's own state is the front door's to
    tell. `since` is when the present or the last run began. `ended` explains the last end: `exit code 1`, `killed by
    SIGKILL`, `out of memory`; `exit_code` is 0 where the end was asked for. `url` is where this engine's front door
    listens, if that is known better than by the settings. `problem` is what keeps it from running as it should, where
    that is known, with its fix."""

    running: bool
    who: str = ""
    since: float | None = None
    ended: str | None = None
    exit_code: int | None = None
    out_of_memory: bool = False
    health: str | None = None
    url: str | None = None
    problem: Finding | None = None


class OutputLine(NamedTuple):
    """A line that the engine's process wrote itself; `at` is when it was written, or else read."""

    at: float
    text: str


class EngineEvent(NamedTuple):
    """Something that happened to what runs the engine: `started`, `ended: exit code 3`. `failed`: nobody asked for it,
    and it is no good."""

    at: float
    text: str
    failed: bool = False


class EngineControlError(Exception):
    """The engine could not be started, stopped or asked; `finding` says why and what to do, the text says the same."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(" ".join(filter(None, (finding.message, self.remedy))))

    @property
    def remedy(self) -> str:
        """The fix in words."""
        fix = self.finding.fix
        if fix is None:
            return ""
        return f"{fix.text} (`{fix.command}`)" if fix.command else fix.text


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

    def follow(self, tail: int = TAIL_LINES) -> AsyncGenerator[OutputLine]:
        """The last `tail` lines that the engine's process wrote itself, then each new one as it comes, each once: from
        before its front door lives, and on through every restart, until the generator is closed."""

    def events(self) -> AsyncGenerator[EngineEvent]:
        """What happens to the engine's process from now on, until the generator is closed."""

    async def close(self, *, keep_engine: bool = False) -> None:
        """Let go of the engine at the console's end, which ends it too where the console had started it."""
