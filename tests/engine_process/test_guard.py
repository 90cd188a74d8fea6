"""What the guard of a foreign engine promises: nothing of the command outlives it, or the front door."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.engine_process import process_tree
from appliance.engine_process.child import Child
from tests.supervisor.scripted import is_alive

GUARD = [sys.executable, "-m", "appliance.engine_process.guard", "--"]
# A process that leaves the group, whose parent ends at once, and that hears no SIGTERM.
ORPHAN = """
import os, signal, subprocess, sys
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
"""


def run(code: str, *arguments: str) -> Child:
    return Child([*GUARD, sys.executable, "-c", code, *arguments], os.environ)


def wait_until(what: Callable[[], object], within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(7)", 7), ("pass", 0)])
async def test_it_ends_with_the_status_of_the_command(code: str, status: int) -> None:
    """As if the guard were not there."""
    assert await run(code).wait() == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT])
async def test_it_ends_of_the_signal_that_ended_the_command(number: int) -> None:
    """The supervisor tells an end by SIGKILL from one by SIGSEGV."""
    code = f"import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), {number})"
    assert await run(code).wait() == -number


async def test_a_command_that_is_not_there_is_told() -> None:
    """With the status that shells use for it, and its name."""
    child = Child([*GUARD, "/nowhere/vllm"], os.environ)
    assert await child.wait() == 127
    assert b"/nowhere/vllm: No such file" in child.output.read()


async def test_orphans_end_with_the_command(tmp_path: Path) -> None:
    """A process that its parent left behind in a session of its own comes to the guard, and ends with it."""
    note = tmp_path / "pid"
    code = ORPHAN + "import time; time.sleep(0.3)"
    assert await run(code, str(note)).wait() == 0
    wait_until(lambda: not is_alive(int(note.read_text())))


async def test_the_whole_family_ends_when_it_is_ended(tmp_path: Path) -> None:
    """TERM is not heard, and the orphan is in no group of ours."""
    note = tmp_path / "pid"
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ORPHAN + "import time; time.sleep(600)"
    child = run(code, str(note))
    wait_until(lambda: note.exists() and note.read_text())
    assert await child.end(0.2) == -signal.SIGKILL
    wait_until(lambda: not is_alive(int(note.read_text())))


def test_the_whole_family_ends_within_three_seconds_of_the_front_door(tmp_path: Path) -> None:
    """The front door is killed -9: it can do nothing itself, and the guard sees the end of its pipe."""
    note, engine = tmp_path / "pid", tmp_path / "engine"
    code = (
        f"open({str(engine)!r}, 'w').write(str(__import__('os').getpid()))\n"
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ORPHAN + "import time; time.sleep(600)"
    )
    front_door = (
        "import os, sys, time\nfrom appliance.engine_process.child import Child\n"
        f"Child({[*GUARD, sys.executable, '-c', code, str(note)]!r}, os.environ)\ntime.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", front_door])
    wait_until(lambda: note.exists() and note.read_text())
    pids = [int(note.read_text()), int(engine.read_text())]
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(is_alive, pids)), within_s=20)


@pytest.mark.parametrize("listed", [True, False])
async def test_a_family_is_found_with_and_without_the_kernels_lists(
    monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    """Children and theirs, whatever they are called; the dead ones are none."""
    monkeypatch.setattr(process_tree, "KERNEL_LISTS_CHILDREN", listed)
    child = Child(["sh", "-c", "sleep 600 & (exit 0) & sh -c 'sleep 600 & echo; wait'"], os.environ)
    child.output.readline()
    wait_until(lambda: len(process_tree.descendants(child.pid)) == 3)
    await child.end(0)
    assert process_tree.descendants(child.pid) == []


async def test_a_process_of_any_name_belongs_to_the_family() -> None:
    """A name may be cut in the middle of a letter."""
    code = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'abc\\xc3'); print(flush=True); time.sleep(600)"
    child = Child(["sh", "-c", f'{sys.executable} -c "{code}"; :'], os.environ)
    child.output.readline()
    (worker,) = process_tree.descendants(child.pid)
    os.kill(worker, signal.SIGSTOP)
    wait_until(child.stopped)
    await child.end(0)


async def test_it_ends_though_no_file_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front door at its limit of open files must still be able to end what it started."""

    def full(_pid: int) -> list[int]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("appliance.engine_process.child.descendants", full)
    child = Child(["sleep", "600"], os.environ)
    assert await child.end(0.1) == -signal.SIGTERM
