"""Where every process of a hung engine is: its Python stacks, taken from outside by py-spy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

DUMP_TIMEOUT_S = 5.0


def dump_stacks(pid: int) -> str:
    """The stacks of `pid` and all that it started, as text. Where they cannot be had, the text says why."""
    return "\n".join(_dump(process) for process in _family(pid))


def _family(pid: int) -> list[int]:
    import psutil  # late: only a hung engine needs it

    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return [pid]


def _dump(pid: int) -> str:
    beside_python = Path(sys.executable).with_name("py-spy")
    program = str(beside_python) if beside_python.exists() else shutil.which("py-spy")
    if program is None:
        return f"Process {pid}: no stacks, since py-spy is not installed"
    # Not blocking: a process that is stopped, or stuck in the kernel, cannot be paused.
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DUMP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"Process {pid}: no stacks, since py-spy did not end within {DUMP_TIMEOUT_S:.0f} s"
    if done.returncode != 0:
        return f"Process {pid}: no stacks, since py-spy says: {done.stderr.strip() or done.stdout.strip()}"
    return done.stdout


def has_stacks(text: str) -> bool:
    return "Thread " in text
