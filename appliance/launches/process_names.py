"""What the processes of an engine are called: by their log prefix, their title, or their command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

# vLLM's prefix: (Worker_TP0 pid=123).
PREFIX = re.compile(r"\((?P<name>\w{1,60}) pid=(?P<pid>\d{1,9})\)")
TITLE = re.compile(r"\w{1,20}::(?P<name>\S{1,60})")
MODULES = {"appliance.engine": "core"}
STARTED_BY = {
    "multiprocessing.resource_tracker": "resource tracker",
    "multiprocessing.forkserver": "fork server",
    "multiprocessing.spawn": "spawned process",
    "compile_worker": "compile worker",
}
HELPERS = ("resource tracker", "fork server")
GUARD = "appliance.engine_process.guard"


def is_helper(command: Sequence[str]) -> bool:
    """Whether it always waits for the others, and works for none."""
    return is_guard(command) or name_of(command) in HELPERS


def is_guard(command: Sequence[str]) -> bool:
    return GUARD in command


def name_of(command: Sequence[str]) -> str:
    """Of a process with these arguments."""
    if not command:
        return "process"
    if title := TITLE.match(command[0]):
        return title["name"]
    for word, name in STARTED_BY.items():
        if any(word in argument for argument in command[1:4]):
            return name
    if "-m" in command[1:-1]:
        module = command[command.index("-m") + 1]
        return MODULES.get(module, module)
    program = PurePath(command[0]).name
    script = next((argument for argument in command[1:] if not argument.startswith("-")), "")
    return PurePath(script).name[:60] if program.startswith("python") and "/" in script else program[:60]
