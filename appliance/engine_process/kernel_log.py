"""What the kernel reports about the engine's end: the out-of-memory killer, native crashes, GPU errors (Xid).

Two sources: the kernel's ring buffer, which on many machines only root may read, and this cgroup's count of
out-of-memory kills, which is readable in any container.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

_KMSG = Path("/dev/kmsg")
# Process names of an engine; other programs of the machine do not concern us.
_ENGINE_PROCESS = r"(?:python|pt_main_thread|vllm|ray|ingot)"
OUT_OF_MEMORY = re.compile(rf"killed process \d{{1,9}} \({_ENGINE_PROCESS}|oom_kill \d{{1,9}} ->", re.IGNORECASE)
CRASH = re.compile(
    rf"{_ENGINE_PROCESS}\S{{0,80}}\[\d{{1,9}}\]:? (?:segfault|general protection|trap (?:invalid opcode|divide error))",
    re.IGNORECASE,
)
HARDWARE = re.compile(r"NVRM: |nvidia-nvlink|nvswitch|mce: |Hardware Error", re.IGNORECASE)
MAX_LINES = 40
# A kernel record counts for the engine's end if it is at most this old.
RECENT_S = 20.0


class KernelRecord(NamedTuple):
    """A line from the kernel, and its age."""

    text: str
    age_s: float

    def __str__(self) -> str:
        return f"kernel, {self.age_s:.0f} s ago: {self.text}"


def out_of_memory(records: Sequence[KernelRecord]) -> str | None:
    """The kernel's record that it has just killed a process of this engine because memory ran out."""
    return next((record.text for record in records if OUT_OF_MEMORY.search(record.text)), None)


def of_this_end(records: Sequence[KernelRecord], *, killed: bool, crashed: bool) -> list[KernelRecord]:
    """The records that may explain an engine's end just now. Kills and crashes count only if its own exit status allows
    for one (`killed`, `crashed`); otherwise they are another program's."""
    patterns = [HARDWARE, *([OUT_OF_MEMORY] if killed else []), *([CRASH] if crashed else [])]
    recent = [record for record in records if record.age_s <= RECENT_S or HARDWARE.search(record.text)]
    return [record for record in recent if any(pattern.search(record.text) for pattern in patterns)]


class KernelLog:
    """Reports what was recorded after its creation, which is before the engine's process starts."""

    def __init__(
        self, kmsg: Path = _KMSG, group: Path | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        from appliance.hardware.cgroup import own_memory_group  # late: it would delay the front door's first answer

        self._now = now
        self._group = group or own_memory_group()
        self._kills_at_start = self._kills = self._count_kills() or 0
        self._killed_at = 0.0
        self._handle = -1
        with contextlib.suppress(OSError):  # not root, or no such device: the counter remains
            self._handle = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._handle, 0, os.SEEK_END)

    @property
    def counts_kills(self) -> bool:
        """Whether every out-of-memory kill in this control group would be known."""
        return self._count_kills() is not None

    def look(self) -> None:
        """Note when the counter of kills rises. To be called regularly: the counter itself has no timestamps."""
        kills = self._count_kills() or 0
        if kills > self._kills:
            self._kills, self._killed_at = kills, self._now()

    def since_start(self) -> list[KernelRecord]:
        """To be called once: it closes the ring buffer."""
        self.look()
        records = self._read()[-MAX_LINES:]
        if self._kills > self._kills_at_start:
            text = f"memory.events of this control group: oom_kill {self._kills_at_start} -> {self._kills}"
            records.append(KernelRecord(text, self._now() - self._killed_at))
        return records

    def _read(self) -> list[KernelRecord]:
        found: list[KernelRecord] = []
        if self._handle < 0:
            return found
        try:
            while entry := self._next():
                # priority,sequence,microseconds,flags;text, with the microseconds of time.monotonic()
                head, _, text = entry.decode(errors="replace").partition(";")
                text = text.split("\n", 1)[0]
                if any(pattern.search(text) for pattern in (OUT_OF_MEMORY, CRASH, HARDWARE)):
                    found.append(KernelRecord(text, max(self._now() - float(head.split(",")[2]) / 1e6, 0.0)))
        finally:
            os.close(self._handle)
            self._handle = -1
        return found

    def _next(self) -> bytes:
        """The next record, since each read returns one; empty at the end."""
        while True:
            try:
                return os.read(self._handle, 8192)
            except BrokenPipeError:  # the oldest records were overwritten: continue with what is left
                continue
            except OSError:
                return b""

    def _count_kills(self) -> int | None:
        """From memory.events in cgroup v2, memory.oom_control in v1; None where neither has it."""
        if self._group is None:
            return None
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                pairs = (line.split() for line in (self._group / name).read_text().splitlines())
                counted = next((int(pair[1]) for pair in pairs if pair[0] == "oom_kill"), None)
                if counted is not None:
                    return counted
        return None
