"""What a supervisor runs next: the active profile, or another that a request asked for; and whether it may."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from appliance.engine_process.launch_journal import NO_ORIGIN, LaunchJournal, Origin
from appliance.home import Home
from appliance.protocol import Diagnosis, LaunchRecord, State

if TYPE_CHECKING:
    from appliance.supervisor.source import Source


@dataclass(frozen=True)
class Start:
    """`started` is when it was wanted. `replaces`: something was served until then."""

    source: Source
    started: float
    origin: Origin = NO_ORIGIN
    replaces: bool = False

    def again(self, home: Home, origin: Origin) -> Start:
        """The same profile as a new launch."""
        source = msgspec.structs.replace(self.source, launch=home.new_launch_id(), asked=False)
        return Start(source, time.time(), origin)


@dataclass(frozen=True)
class Swap:
    """`why` is what the launch that makes room says. `launch` is that of `start`, or None if it does not begin."""

    start: Start
    why: str
    launch: asyncio.Future[LaunchJournal | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def profile(self) -> str:
        return str(self.start.source.document.get("name", ""))


def failed_record(reason: str, launch_id: str, started: float, source: Source | None) -> LaunchRecord:
    """Of a launch that left nothing on disk."""
    now = time.time()
    return LaunchRecord(
        id=launch_id,
        profile=str(source.document.get("name", "")) if source else "",
        revision=source.revision if source else "",
        started=started,
        state=State.FAILED,
        since=now,
        reason=reason,
        ended=now,
    )


def read_next(home: Home, profile_file: Path | None) -> Source:
    """Blocking."""
    from appliance.supervisor.abandoned import close_abandoned  # late, as preflight
    from appliance.supervisor.source import read_source

    try:
        close_abandoned(home)
    except OSError as error:
        print(f"ingot: cannot close an earlier launch in the history: {error}", file=sys.stderr)
    return read_source(home, profile_file)


def find_loop(home: Home, record: LaunchRecord) -> Diagnosis | None:
    """Blocking. Why it is not started again without being asked for."""
    from appliance.supervisor import crash_loop  # late, as preflight

    return crash_loop.verdict(crash_loop.failures(home, record, time.time()))
