"""Where every process of a hung engine is: its kernel state, what it waits for there, and its Python stacks, taken from
outside by py-spy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from appliance.engine_process.process_tree import descendants, state_of
from appliance.engine_process.waits import held_locks, waits_of
from appliance.redaction import without_secrets

DUMP_TIMEOUT_S = 5.0
# All processes are looked at at the same time, so that eight workers take no longer than one.
AT_ONCE = 16
MAX_COMMAND = 300


def dump_stacks(pid: int) -> str:
    """The stacks of `pid` and its descendants, as text; where there are none, the text says why."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return "\n".join((*held_locks(), *pool.map(_dump, [pid, *descendants(pid)])))


def _dump(pid: int) -> str:
    head = "\n".join((_in_kernel(pid), *waits_of(pid)))
    if not _is_python(pid):
        return head
    return f"{head}\n{_python_stacks(pid)}"


def _in_kernel(pid: int) -> str:
    """Its command, its state (R runs, S sleeps, D waits for a device or disk, T is stopped), and the kernel's function
    that it waits in."""
    process = Path(f"/proc/{pid}")
    try:
        command = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"Process {pid} has ended"
    try:
        waits = process.joinpath("wchan").read_text(errors="replace").strip("0\n")
    except OSError:
        waits = ""
    command = without_secrets(command)[:MAX_COMMAND]
    return f"Process {pid}, state {state_of(pid)}{f', in {waits}' if waits else ''}: {command}"


def _is_python(pid: int) -> bool:
    try:
        return b"python" in Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return True  # not ours to read: py-spy says why


def _python_stacks(pid: int) -> str:
    beside_python = Path(sys.executable).with_name("py-spy")
    program = str(beside_python) if beside_python.exists() else shutil.which("py-spy")
    if program is None:
        return f"Process {pid}: no stacks: py-spy is not installed"
    # Not blocking: a process that is stopped, or stuck in the kernel, cannot be paused.
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=DUMP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"Process {pid}: no stacks: py-spy did not finish within {DUMP_TIMEOUT_S:.0f} s"
    except OSError as error:
        return f"Process {pid}: no stacks: cannot start {program}: {error.strerror}"
    if done.returncode != 0:
        return f"Process {pid}: no stacks: py-spy reported: {done.stderr.strip() or done.stdout.strip()}"
    return done.stdout


def has_stacks(text: str) -> bool:
    return "Thread " in text
