"""The engine as a child process: what every control promises, and what only a process can do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from appliance.home import Home
from appliance.home_lock import is_held
from appliance.protocol import State
from console.engine_control.absent import Absent
from console.engine_control.base import EngineControlError
from console.engine_control.ending import memory_kills
from console.engine_control.process import ProcessControl
from console.live.follower import _state_without_front_door
from tests.console.engine_promises import SCRIPT, EnginePromises, ended, has, kept, until

# Holds the lock as `ingot serve` does, says that it runs, and ends on SIGTERM unless told to be stubborn.
ENGINE = """
import os, signal, sys, time
from pathlib import Path
from appliance.home_lock import Owner, OwnerLock
lock = OwnerLock(Path(os.environ["INGOT_HOME"], "serve.lock"))
lock.sign(Owner(pid=os.getpid(), host="0.0.0.0", port=8123, started=time.time()))
def stop(*_):
    lock.release()
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in sys.argv else stop)
print("the engine runs", flush=True)
if "fail" in sys.argv:
    print("Error: port 8123 is taken", flush=True)
    sys.exit(3)
time.sleep(60)
"""


class ScriptedProcess:
    def __init__(self, home: Home) -> None:
        self.mode = home.root / "mode"
        self.control = ProcessControl(home, ["bash", "-c", SCRIPT, "engine", str(self.mode)])

    def kill(self) -> None:
        (child,) = [child for child in psutil.Process().children() if child.name() == "bash"]
        child.kill()


class TestProcess(EnginePromises):
    @pytest.fixture
    async def engine(self, home):
        made = ScriptedProcess(home)
        yield made
        await made.control.close()


def _process(home, *arguments: str) -> ProcessControl:
    return ProcessControl(home, [sys.executable, "-c", ENGINE, *arguments])


async def _running(control) -> bool:
    return (await control.status()).running


async def _counts(items: list, count: int) -> bool:
    return len(items) == count


async def _wrote(control) -> bool:
    return "the engine runs" in control.output.read_text()


# ---- processes ------------------------------------------------------------------------------------------------------


async def test_the_end_of_a_failed_child_is_told(home):
    """Exit code and last words are there for the page."""
    control = _process(home, "fail")
    await control.start()
    await until(lambda: ended(control))
    status = await control.status()
    assert status.ended == "exit status 3"
    assert status.exit_code == 3
    assert control.output.read_text().splitlines()[-1] == "Error: port 8123 is taken"


async def test_a_restart_keeps_what_the_last_child_wrote(home):
    """Its trace can be read after somebody has started the engine again."""
    failing = _process(home, "fail")
    await failing.start()
    await until(lambda: ended(failing))
    control = _process(home)
    await control.start()
    assert "port 8123 is taken" in (home.root / "serve.log.1").read_text()
    await control.close()


async def test_the_time_of_a_line_says_which_run_wrote_it(home, tmp_path):
    """However soon one child follows the other."""
    mode = tmp_path / "mode"
    mode.write_text("counts")
    control = ProcessControl(home, ["bash", "-c", SCRIPT, "engine", str(mode)])
    await control.start()
    async with kept(control.follow) as lines:
        for run in range(2, 5):
            await until(partial(has, lines, "count 9", run - 1))
            await control.restart()
            since = (await control.status()).output_since
            await until(partial(has, lines, "count 9", run))
            assert since is not None
            texts = [line.text for line in lines if line.at >= since]
            assert texts[0] == "the engine begins: counts"
            assert texts.count("the engine begins: counts") == 1
    await control.close()


async def test_first_words_are_of_the_run_that_has_just_begun(home):
    """File times lag the clock: a line may be dated a few milliseconds before the start of whoever wrote it."""
    control = ProcessControl(home, ["bash", "-c", "sleep 1000"])
    await control.start()
    since = (await control.status()).output_since
    assert since is not None
    control.output.write_text("the first words\n")
    os.utime(control.output, (since - 0.004, since - 0.004))
    async with kept(control.follow) as lines:
        await until(lambda: has(lines, "the first words"))
    assert lines[0].at >= since
    await control.close()


async def test_output_of_an_earlier_engine_is_not_that_of_one_that_was_taken_over(home):
    """It may write to a terminal, and the file be years old."""
    (home.root / "serve.log").write_text("an old line\n")
    os.utime(home.root / "serve.log", (1000.0, 1000.0))
    environ = {**os.environ, "INGOT_HOME": str(home.root)}
    adopted = await asyncio.create_subprocess_exec(sys.executable, "-c", ENGINE, env=environ, stdout=subprocess.DEVNULL)
    try:
        control = _process(home)
        await until(lambda: _running(control))
        async with kept(control.follow) as lines:
            await until(lambda: has(lines, "an old line"))
        since = (await control.status()).output_since
        assert since is not None
        assert lines[0].at < since
    finally:
        adopted.kill()
        await adopted.wait()


async def test_a_running_engine_is_taken_over(home):
    """A console that starts anew finds the engine, does not start a second, can stop it, and does not end it with
    itself."""
    first = _process(home)
    await first.start()
    await until(lambda: _wrote(first))
    second = _process(home)
    status = await second.status()
    assert status.running
    assert status.url == "http://127.0.0.1:8123"
    await second.start()
    assert (await second.status()).who == status.who
    await second.close()
    assert await _running(first)
    await second.stop()
    assert not await _running(second)


@pytest.mark.parametrize(
    ("number", "kills", "state", "problem"),
    [
        (signal.SIGKILL, 0, State.FAILED, "engine-died"),
        (signal.SIGKILL, 1, State.FAILED, "out-of-memory"),
        (signal.SIGTERM, 0, State.STOPPED, None),
    ],
)
async def test_the_end_of_an_engine_that_was_taken_over_is_told(home, monkeypatch, number, kills, state, problem):
    """Nobody has its exit status; but one that is stopped takes its name off the lock."""
    first = _process(home)
    await first.start()
    await until(lambda: _wrote(first))
    second = _process(home)
    before = await second.status()
    assert before.running
    count = memory_kills()
    monkeypatch.setattr("console.engine_control.process.memory_kills", lambda: count + kills * (not is_held(home.lock)))
    async with kept(second.events) as events:
        os.kill(int(before.who.split()[1]), number)
        await until(lambda: ended(second))
        await until(partial(_counts, events, 1))
    status = await second.status()
    assert (status.who, _state_without_front_door(status)) == (before.who, state)
    assert (status.problem.id if status.problem else None) == problem
    assert events[0].failed == (state is State.FAILED)
    await second.start()
    assert await _running(second)
    await second.close()


async def test_an_engine_that_was_taken_over_and_stopped_here_did_not_fail(home):
    first = _process(home, "stubborn")
    await first.start()
    await until(lambda: _wrote(first))
    second = _process(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("console.engine_control.process.STOP_WITHIN_S", 0.1)
        await second.stop()
    status = await second.status()
    assert (status.running, status.exit_code, status.problem) == (False, 0, None)


async def test_a_name_left_behind_is_not_an_engine(home):
    """A lock file names a process that is gone, or whose number another has now: even one that is older than the
    name, nobody holds the lock."""
    for pid, started in ((2**22 - 7, 1000.0), (os.getpid(), 1000.0), (os.getpid(), time.time())):
        home.lock.write_text(f'{{"pid": {pid}, "host": "127.0.0.1", "port": 1, "started": {started}}}')
        assert not await _running(_process(home))


async def test_an_engine_that_was_taken_over_is_killed_alone(home, monkeypatch):
    """One that somebody started in a terminal shares its group with what else they run there: this test, here."""
    monkeypatch.setattr("console.engine_control.process.STOP_WITHIN_S", 0.3)
    theirs = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        ENGINE,
        "stubborn",
        env={**os.environ, "INGOT_HOME": str(home.root)},
        stdout=subprocess.PIPE,
    )
    assert theirs.stdout is not None
    assert await theirs.stdout.readline() == b"the engine runs\n"
    groups: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: groups.append(group))
    await _process(home).stop()
    assert not psutil.pid_exists(theirs.pid)
    assert groups == []


async def test_closing_ends_the_child_unless_told_otherwise(home):
    """The engine ends with the console; `keep_engine` leaves it for the next one."""
    control = _process(home)
    await control.start()
    pid = int((await control.status()).who.split()[-1])
    await control.close(keep_engine=True)
    assert psutil.pid_exists(pid)
    await control.close()
    assert not psutil.pid_exists(pid)


async def test_a_stubborn_engine_is_killed(home, monkeypatch):
    """What ignores SIGTERM is killed with its group, and the stop asked for does not count as a failure."""
    monkeypatch.setattr("console.engine_control.process.STOP_WITHIN_S", 0.3)
    control = _process(home, "stubborn")
    await control.start()
    await until(lambda: _wrote(control))
    await control.stop()
    status = await control.status()
    assert status.ended == "killed by SIGKILL"
    assert status.exit_code == 0


async def test_a_crash_counts_as_one(home):
    """A signal that nobody here sent is told by its name."""
    control = _process(home)
    await control.start()
    os.kill(int((await control.status()).who.split()[-1]), signal.SIGSEGV)
    await until(lambda: ended(control))
    status = await control.status()
    assert status.ended == "killed by SIGSEGV"
    assert status.exit_code == -signal.SIGSEGV


async def test_the_child_has_a_group_of_its_own(home):
    """Ctrl-C in the terminal reaches the console alone, which ends the engine in order."""
    control = _process(home)
    await control.start()
    pid = int((await control.status()).who.split()[-1])
    assert os.getpgid(pid) == pid
    await control.close()


async def test_a_command_that_is_not_there(home):
    """The message names it."""
    with pytest.raises(EngineControlError, match="no-such-program"):
        await ProcessControl(home, ["/no-such-program"]).start()


async def test_two_starts_at_once_start_one(home):
    """Two people press Start: one engine."""
    control = _process(home)
    await asyncio.gather(control.start(), control.start(), control.start())
    await until(lambda: _wrote(control))  # until then a child has no command line
    pid = (await control.status()).who.split()[-1]
    children = psutil.Process().children()
    assert [str(child.pid) for child in children if child.cmdline()[1:2] == ["-c"]] == [pid]
    await control.close()


async def test_without_an_engine_it_says_so():
    """`--no-engine`: the buttons explain themselves."""
    assert not await _running(Absent())
    with pytest.raises(EngineControlError, match="--no-engine"):
        await Absent().restart()


# ---- ingot serve ----------------------------------------------------------------------------------------------------


def test_the_serve_command_exists():
    """What the process control starts is the command that is installed."""
    from console.engine_control.process import serve_command

    command = serve_command("127.0.0.1", 1)
    shown = subprocess.run([*command[:4], "--help"], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert "--port" in shown.stdout
