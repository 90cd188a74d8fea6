"""What the kernel says of the engine's end: the out-of-memory killer, a crash in native code, an error of a GPU (Xid).

Its ring buffer is read where this process may (on many machines only root may), and the counter of out-of-memory kills
of this control group, which a container may always read.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

_KMSG = Path("/dev/kmsg")
_CGROUP = Path("/sys/fs/cgroup")
# The name of the control group's file of events: in version 2, and in version 1.
_EVENTS = ("memory.events", "memory/memory.oom_control")
TELLING = re.compile(
    r"out of memory|oom-kill|oom_reaper|killed process|segfault|general protection|trap (invalid opcode|divide error)|"
    r"bus error|NVRM: |nvidia-nvlink|nvswitch|mce: |Hardware Error",
    re.IGNORECASE,
)
MAX_LINES = 40


OUT_OF_MEMORY = re.compile(
    r"killed process \d+ \((?:python|pt_main_thread|vllm|ray|ingot)|oom_kill \d+ ->", re.IGNORECASE
)


def out_of_memory(said: Sequence[str]) -> str | None:
    """The line that says that a process of this engine was killed for want of memory, and not just any program's."""
    return next((line for line in said if OUT_OF_MEMORY.search(line)), None)


class KernelLog:
    """Made before the engine's process starts: only what comes after that is told."""

    def __init__(self, kmsg: Path = _KMSG, cgroup: Path = _CGROUP) -> None:
        self._cgroup = cgroup
        self._kills = _out_of_memory_kills(cgroup)
        self._handle = -1
        with contextlib.suppress(OSError):  # not root, or a container without it: the counter is left
            self._handle = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._handle, 0, os.SEEK_END)

    def since_start(self) -> list[str]:
        """Lines for the launch's log, each beginning with `kernel: `. May be called once."""
        lines = [f"kernel: {line}" for line in self._telling()][-MAX_LINES:]
        kills = _out_of_memory_kills(self._cgroup)
        if kills > self._kills:
            lines.append(f"kernel: memory.events of this control group: oom_kill {self._kills} -> {kills}")
        return lines

    def _telling(self) -> list[str]:
        found: list[str] = []
        if self._handle < 0:
            return found
        try:
            while record := self._next():
                text = record.decode(errors="replace").partition(";")[2].split("\n", 1)[0]
                if TELLING.search(text):
                    found.append(text)
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


def _out_of_memory_kills(cgroup: Path) -> int:
    for name in _EVENTS:
        with contextlib.suppress(OSError, ValueError):
            pairs = (line.split() for line in (cgroup / name).read_text().splitlines())
            return next((int(pair[1]) for pair in pairs if pair[0] == "oom_kill"), 0)
    return 0
