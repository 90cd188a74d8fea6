"""Processes and their states, read from /proc with nothing beyond the standard library."""

from __future__ import annotations

import contextlib
from pathlib import Path

KERNEL_LISTS_CHILDREN = Path("/proc/thread-self/children").exists()


def descendants(root: int) -> list[int]:
    """Every live process below `root`."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        for pid in _children(waiting.pop()):
            if pid not in found and state_of(pid) not in ("Z", "X", ""):
                found.append(pid)
                waiting.append(pid)
    return found


def _children(pid: int) -> list[int]:
    """A kernel with CONFIG_PROC_CHILDREN lists them for each thread; otherwise every process of the machine is read."""
    if not KERNEL_LISTS_CHILDREN:
        return [other for other in _all_processes() if _parent(other) == pid]
    children: list[int] = []
    with contextlib.suppress(OSError):  # it ends meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                children += map(int, (thread / "children").read_text().split())
    return children


def _all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _parent(pid: int) -> int:
    return int(statistics_of(pid)[1])


def state_of(pid: int) -> str:
    """The kernel's letter: R running, S sleeping, D in uninterruptible sleep, T stopped, Z zombie; empty for none."""
    return statistics_of(pid)[0]


def command_of(pid: int) -> list[str]:
    """Its arguments; empty if there is no such process, or no program of a user."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return raw.rstrip(b"\0").decode(errors="replace").split("\0") if raw else []


def statistics_of(pid: int) -> list[str]:
    """The fields after the name: state, parent, and so on. The state is empty if there is no such process."""
    try:
        # pid (name) state parent ...: the name may hold anything, a bracket too.
        raw = Path(f"/proc/{pid}/stat").read_bytes()
        return raw.rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return ["", "0"]
