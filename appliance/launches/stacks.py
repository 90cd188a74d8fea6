"""Parses the stack traces of a hung launch from `stacks.txt`: for each process a line by the supervisor, followed by
the output of py-spy for a Python process, which begins with its own header."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

LIMIT_BYTES = 256 * 1024
"""The page shows no more than this: hundreds of threads are for the download."""

STATES = {
    "R": "is running",
    "S": "is waiting",
    "D": "is waiting for a device or disk",
    "T": "is stopped",
    "t": "is stopped by a debugger",
    "Z": "has ended",
    "X": "has ended",
    "I": "is idle",
}
"""The kernel's process states."""

_PROCESS = re.compile(
    r"Process (?P<pid>\d+)"
    r"(?:(?:, state (?P<state>\w?)(?:, in (?P<waits>[^\s:]+))?)?: ?(?P<what>.*)|(?P<ended> has ended))"
)
_THREAD = re.compile(r"Thread (?P<id>\S+) \((?P<state>[^)]*)\)(?:: \"(?P<name>[^\"]*)\")?")
_FRAME = re.compile(r"^\s{1,80}(?P<function>\S.{0,400}?) \((?P<place>[^()]{0,1000})\)$")


@dataclass
class Frame:
    function: str
    place: str


@dataclass
class Thread:
    """`frames` start with the innermost."""

    name: str
    state: str
    frames: list[Frame] = field(default_factory=list)

    @property
    def stands(self) -> str:
        return f"{self.frames[0].function}, {self.frames[0].place}" if self.frames else ""


@dataclass
class Process:
    """`state` is the kernel's letter, and `waits` the kernel function that the process waits in; empty if unknown.
    `notes` are lines that are not stacks: the Python version, or why there are no stacks."""

    pid: str
    what: str
    state: str = ""
    waits: str = ""
    notes: list[str] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)

    @property
    def does(self) -> str:
        """Its kernel state, in words."""
        if not self.state:
            return ""
        return STATES.get(self.state, f"is in state {self.state}") + (f" in {self.waits}" if self.waits else "")


@dataclass
class Stacks:
    processes: list[Process] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    cut: bool = False


def read_stacks(path: Path) -> Stacks | None:
    """None if there are none."""
    try:
        with path.open("rb") as file:
            raw = file.read(LIMIT_BYTES + 1)
    except OSError:
        return None
    found = parse(raw[:LIMIT_BYTES].decode("utf-8", "replace"))
    found.cut = len(raw) > LIMIT_BYTES
    return found


def parse(text: str) -> Stacks:
    """Lines that are neither process, thread nor frame are kept in place."""
    found = Stacks()
    for line in text.splitlines():
        process = found.processes[-1] if found.processes else None
        if match := _PROCESS.fullmatch(line):
            what = match["what"] or ""
            if process is None or process.pid != match["pid"]:
                state = "X" if match["ended"] else match["state"] or ""
                found.processes.append(Process(match["pid"], what, state, match["waits"] or ""))
            elif not process.what or not what.startswith(process.what):  # says why there are no stacks
                process.notes.append(what)
        elif process is None:
            if line.strip():
                found.rest.append(line)
        elif match := _THREAD.fullmatch(line):
            process.threads.append(Thread(match["name"] or match["id"], match["state"]))
        elif process.threads and (match := _FRAME.fullmatch(line)):
            process.threads[-1].frames.append(Frame(match["function"], match["place"]))
        elif line.strip():
            process.notes.append(line.strip())
    return found
