"""The stacks of a hung launch's processes, from the text that py-spy wrote to `stacks.txt`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

LIMIT_BYTES = 256 * 1024
"""More than this is for the download: hundreds of threads, which nobody reads on a page."""

_PROCESS = re.compile(r"Process (?P<pid>\d+): (?P<what>.*)")
_THREAD = re.compile(r"Thread (?P<id>\S+) \((?P<state>[^)]*)\)(?:: \"(?P<name>[^\"]*)\")?")
_FRAME = re.compile(r"\s+(?P<function>.+?) \((?P<place>[^()]*)\)$")


@dataclass
class Frame:
    function: str
    place: str


@dataclass
class Thread:
    """`frames` begin with the innermost: where it stands."""

    name: str
    state: str
    frames: list[Frame] = field(default_factory=list)

    @property
    def stands(self) -> str:
        return f"{self.frames[0].function}, {self.frames[0].place}" if self.frames else ""


@dataclass
class Process:
    """`notes` are lines that are no stack: the Python version, or why there are no stacks."""

    pid: str
    what: str
    notes: list[str] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)


@dataclass
class Stacks:
    processes: list[Process] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    cut: bool = False


def read_stacks(path: Path) -> Stacks | None:
    """None where there are none."""
    try:
        with path.open("rb") as file:
            raw = file.read(LIMIT_BYTES + 1)
    except OSError:
        return None
    found = parse(raw[:LIMIT_BYTES].decode("utf-8", "replace"))
    found.cut = len(raw) > LIMIT_BYTES
    return found


def parse(text: str) -> Stacks:
    """Lines that are neither process, thread nor frame are kept where they stand."""
    found = Stacks()
    for line in text.splitlines():
        process = found.processes[-1] if found.processes else None
        if match := _PROCESS.fullmatch(line):
            found.processes.append(Process(match["pid"], match["what"]))
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
