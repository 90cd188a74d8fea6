"""What the kernel reports about the engine's end: the out-of-memory killer, native crashes, GPU errors (Xid).

Its ring buffer is read where this process may (on many machines only root may), and the counter of out-of-memory kills
of this control group, which a container may always read.
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
# A process of an engine, and not just any program of this machine.
_OURS = r"(?:python|pt_main_thread|vllm|ray|ingot)"
OUT_OF_MEMORY = re.compile(rf"killed process \d{{1,9}} \({_OURS}|oom_kill \d{{1,9}} ->", re.IGNORECASE)
CRASH = re.compile(
    rf"{_OURS}\S{{0,80}}\[\d{{1,9}}\]:? (?:segfault|general protection|trap (?:invalid opcode|divide error))",
    re.IGNORECASE,
)
HARDWARE = re.compile(r"NVRM: |nvidia-nvlink|nvswitch|mce: |Hardware Error", re.IGNORECASE)
MAX_LINES = 40
# Older kernel records do not belong to this end.
AT_THE_END_S = 20.0


class KernelWord(NamedTuple):
    """A line of the kernel's, and how many seconds ago it was said."""

    text: str
    age_s: float

    def __str__(self) -> str:
        return f"kernel, {self.age_s:.0f} s ago: {self.text}"


def out_of_memory(said: Sequence[KernelWord]) -> str | None:
    """The kernel's record that it has just killed a process of this engine because memory ran out."""
    return next((word.text for word in said if OUT_OF_MEMORY.search(word.text)), None)


def of_this_end(said: Sequence[KernelWord], *, killed: bool, crashed: bool) -> list[KernelWord]:
    """What concerns an engine that ended just now. `killed` and `crashed` say what its own status leaves open; without
    them, a similar end of another program is not related."""
    patterns = [HARDWARE, *([OUT_OF_MEMORY] if killed else []), *([CRASH] if crashed else [])]
    recent = [word for word in said if word.age_s <= AT_THE_END_S or HARDWARE.search(word.text)]
    return [word for word in recent if any(pattern.search(word.text) for pattern in patterns)]


class KernelLog:
    """Created before the engine's process starts; only later records are reported."""

    def __init__(
        self, kmsg: Path = _KMSG, group: Path | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        from appliance.hardware.cgroup import own_memory_group  # late: the first answer does not wait for it

        self._now = now
        self._group = group or own_memory_group()
        self._kills_at_start = self._kills = self._count_kills()
        self._killed_at = 0.0
        self._handle = -1
        with contextlib.suppress(OSError):  # not root, or a container without it: the counter is left
            self._handle = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._handle, 0, os.SEEK_END)

    def look(self) -> None:
        """Now and then, since a counter does not say when it rose."""
        kills = self._count_kills()
        if kills > self._kills:
            self._kills, self._killed_at = kills, self._now()

    def since_start(self) -> list[KernelWord]:
        """May be called once: it closes the log."""
        self.look()
        said = self._telling()[-MAX_LINES:]
        if self._kills > self._kills_at_start:
            text = f"memory.events of this control group: oom_kill {self._kills_at_start} -> {self._kills}"
            said.append(KernelWord(text, self._now() - self._killed_at))
        return said

    def _telling(self) -> list[KernelWord]:
        found: list[KernelWord] = []
        if self._handle < 0:
            return found
        try:
            while record := self._next():
                # priority,sequence,microseconds,flags;text: of the same clock as ours
                head, _, text = record.decode(errors="replace").partition(";")
                text = text.split("\n", 1)[0]
                if any(pattern.search(text) for pattern in (OUT_OF_MEMORY, CRASH, HARDWARE)):
                    found.append(KernelWord(text, max(self._now() - float(head.split(",")[2]) / 1e6, 0.0)))
        finally:
            os.close(self._handle)
            self._handle = -1
        return found

    def _next(self) -> bytes:
        """One record a read; empty at the end."""
        while True:
            try:
                return os.read(self._handle, 8192)
            except BrokenPipeError:  # the buffer went round meanwhile: reading goes on at its new beginning
                continue
            except OSError:
                return b""

    def _count_kills(self) -> int:
        """By the name of the file in version 2, and in version 1."""
        if self._group is None:
            return 0
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                pairs = (line.split() for line in (self._group / name).read_text().splitlines())
                return next((int(pair[1]) for pair in pairs if pair[0] == "oom_kill"), 0)
        return 0
