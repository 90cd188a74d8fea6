"""A model that two processes share, spoken to as the front door does it: what it answers, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, cast

import msgspec
import psutil
import pytest

from appliance.core_protocol import Fatal, FromCore, Loaded, Outputs, SamplingParams, Shutdown, Submit
from appliance.engine.rank_watch import LATE_S
from appliance.engine.ranks import END_WITHIN_S, LOOK_EVERY_S, Follower, cause_of, end, hear, seeded
from tests.configured import engine_config
from tests.engine.test_core import CORE, FrontDoor, is_a
from tests.parity.conftest import generate, make_engine, prompts, tokens
from tests.tiny import write_checkpoint

ROOT = Path(__file__).parents[2]
TOLD_WITHIN_S = 2
HUNG_WITHIN_S = 3  # with a busy machine's delays
# Found by Python as it starts, in both processes: the second fails after three tokens.
BROKEN_RANK = """
from appliance.engine.engine import Engine

step = Engine.step

def broken(self, compiled=None):
    if self._group.rank == 1 and self.output_tokens_sampled >= 3:
        raise LookupError("a rank of its own")
    return step(self, compiled)

Engine.step = broken
"""
RAISES = 'raise LookupError("a rank of its own")'
# Likewise: the forward pass of one rank, once it has written three tokens.
LATE_RANK = """
import threading, time
from appliance.engine.runner import Runner

compute = Runner.compute

def stuck():
    {does}

def late(self, step):
    if self._group.rank == {rank} and step[0].request.num_tokens >= {tokens}:
        stuck()
    return compute(self, step)

Runner.compute = late
"""


class Launch:
    def __init__(self, folder: Path, environ: dict[str, str] | None = None, **config: Any) -> None:
        self.front_door = FrontDoor()
        command = [*CORE, str(self.front_door.folder)]
        self.core = subprocess.Popen(command, env=os.environ | (environ or {}), start_new_session=True)
        self.front_door.send(engine_config(folder, ranks=2, **config))
        self.front_door.until(is_a(Loaded), 90)
        [self.follower] = psutil.Process(self.core.pid).children()

    def generate(self, asked: dict[str, list[int]], **sampling: Any) -> dict[str, list[int]]:
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 32, "ignore_eos": True} | sampling)
        written: dict[str, list[int]] = {name: [] for name in asked}
        left = set(asked)
        for name, prompt in asked.items():
            self.front_door.send(Submit(request_id=name, prompt_token_ids=prompt, sampling=params))
        while left:
            message = self.front_door.until(is_a(Outputs))[-1]
            assert isinstance(message, Outputs)
            for output in message.outputs:
                assert output.error is None, output.error
                written[output.request_id] += output.token_ids
                left -= {output.request_id} if output.finish_reason else set()
        return written

    def close(self) -> None:
        for process in (self.follower, psutil.Process(self.core.pid)) if self.core.poll() is None else ():
            process.kill()
        self.core.wait()
        self.front_door.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("ranks") / "model", "qwen3_next", seed=3)


@pytest.fixture
def launch(folder) -> Iterator[Launch]:
    started = Launch(folder, num_snapshots=8)
    yield started
    started.close()


def first_on_path(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def long_request() -> Submit:
    sampling = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
    return Submit(request_id="long", prompt_token_ids=[7, 8, 9], sampling=sampling)


def fatal_of(front_door: FrontDoor) -> tuple[Fatal, float]:
    """The first that comes, and after how long."""
    started = time.monotonic()
    found: list[Fatal] = []

    def is_fatal(message: FromCore) -> bool:
        found.extend([message] if isinstance(message, Fatal) else [])
        return bool(found)

    front_door.until(is_fatal, 10)
    return found[0], time.monotonic() - started


def test_two_processes_give_the_tokens_of_one_and_end_when_told(launch, folder):
    """Greedy, sampled with a seed and without, and again with prefix hits."""
    asked = prompts(5)
    alone = make_engine(folder, num_snapshots=8)
    for sampling in ({}, {"temperature": 0.8, "seed": 11}, {}):
        expected = generate(alone, asked, **{"max_tokens": 32} | sampling)
        assert launch.generate(asked, **sampling) == {name: tokens(found) for name, found in expected.items()}
    assert launch.generate({"free": asked["r2"]}, temperature=1.5)["free"]
    assert launch.generate({"again": asked["r2"]}) == {"again": tokens(expected["r2"])}
    launch.front_door.send(Shutdown())
    assert launch.core.wait(10) == 0
    assert not launch.follower.is_running()


def test_a_rank_that_is_killed_ends_the_launch_with_that_as_its_cause(launch):
    launch.front_door.send(long_request())
    launch.front_door.until(is_a(Outputs))
    launch.follower.kill()
    fatal, seconds = fatal_of(launch.front_door)
    assert str(launch.follower.pid) in fatal.message
    assert "SIGKILL" in fatal.message
    assert seconds < TOLD_WITHIN_S
    assert launch.core.wait(10) == 1


def test_a_rank_ends_with_the_first_one(launch):
    launch.core.kill()
    launch.follower.wait(5)


def test_a_rank_that_is_stopped_ends_the_launch_with_that_as_its_cause(launch):
    launch.front_door.send(long_request())
    launch.front_door.until(is_a(Outputs))
    launch.follower.send_signal(signal.SIGSTOP)
    fatal, seconds = fatal_of(launch.front_door)
    assert str(launch.follower.pid) in fatal.message
    assert "SIGSTOP" in fatal.message
    assert seconds < TOLD_WITHIN_S
    assert launch.core.wait(10) == 1


def test_a_rank_that_is_stopped_for_a_moment_goes_on(launch):
    """As with a debugger that looks at it."""
    launch.front_door.send(long_request())
    launch.follower.send_signal(signal.SIGSTOP)
    time.sleep(LOOK_EVERY_S * 2)
    launch.follower.send_signal(signal.SIGCONT)
    launch.front_door.until(is_a(Outputs))


@pytest.mark.parametrize(
    ("does", "rank", "place"),
    [
        ("time.sleep(60)", 0, "stuck (sitecustomize.py:"),
        ("while True: pass", 1, "stuck (sitecustomize.py:"),
        ("threading.Event().wait()", 1, "wait (threading.py:"),
    ],
)
def test_a_rank_that_hangs_ends_the_launch_and_says_where(folder, tmp_path, does, rank, place):
    """In whichever rank; the stacks of both come with it."""
    (tmp_path / "sitecustomize.py").write_text(LATE_RANK.format(does=does, rank=rank, tokens=6))
    hanging = Launch(folder, first_on_path(tmp_path), num_snapshots=8)
    pids = (hanging.core.pid, hanging.follower.pid)
    try:
        hanging.front_door.send(long_request())
        hanging.front_door.until(is_a(Outputs))
        fatal, seconds = fatal_of(hanging.front_door)
        assert fatal.exception == "RankHungError"
        assert f"Rank {rank} (pid {pids[rank]})" in fatal.message
        assert place in fatal.message
        assert ", in stuck" in fatal.traceback
        assert all(f"Process {pid}, state" in fatal.stacks for pid in pids)
        assert seconds < HUNG_WITHIN_S
        assert hanging.core.wait(10) == 1
        assert not hanging.follower.is_running() or hanging.follower.status() == psutil.STATUS_ZOMBIE
    finally:
        hanging.close()


def test_a_rank_that_is_only_slower_goes_on(folder, tmp_path):
    """All that the other waits for are its steps, which take half as long as would be too long."""
    does = f"time.sleep({LATE_S / 2})"
    (tmp_path / "sitecustomize.py").write_text(LATE_RANK.format(does=does, rank=1, tokens=0))
    slow = Launch(folder, first_on_path(tmp_path), num_snapshots=8)
    try:
        assert len(slow.generate({"slow": [7, 8, 9]}, max_tokens=6)["slow"]) == 6
    finally:
        slow.close()


def test_a_rank_that_compiles_is_waited_for(folder, tmp_path):
    """For longer than for one that hangs: what runs below it is a compiler."""
    compiler = tmp_path / "ptxas"
    compiler.symlink_to(shutil.which("sleep") or "/bin/sleep")
    does = f"import subprocess; subprocess.run(['{compiler}', '{2 * LATE_S}']); globals()['stuck'] = lambda: None"
    (tmp_path / "sitecustomize.py").write_text(LATE_RANK.format(does=does, rank=1, tokens=6))
    busy = Launch(folder, first_on_path(tmp_path), num_snapshots=8)
    try:
        assert len(busy.generate({"busy": [7, 8, 9]}, max_tokens=8)["busy"]) == 8
    finally:
        busy.close()


def test_an_exception_of_a_rank_is_told_with_its_own_words(folder, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BROKEN_RANK)
    broken = Launch(folder, first_on_path(tmp_path), num_snapshots=8)
    try:
        broken.front_door.send(long_request())
        fatal, seconds = fatal_of(broken.front_door)
        assert (fatal.exception, fatal.message) == ("LookupError", "a rank of its own")
        assert "Traceback" in fatal.traceback
        assert seconds < 5
        assert broken.core.wait(10) == 1
        assert not broken.follower.is_running() or broken.follower.status() == psutil.STATUS_ZOMBIE
    finally:
        broken.close()


def test_every_rank_draws_the_same_random_numbers():
    free = Submit(request_id="a", prompt_token_ids=[1], sampling=SamplingParams())
    given = Submit(request_id="a", prompt_token_ids=[1], sampling=SamplingParams(seed=3))
    found = seeded(free)
    assert isinstance(found, Submit)
    assert found.sampling.seed is not None
    assert seeded(given) is given


def killed() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process.kill()
    return process


@pytest.mark.parametrize(
    ("arrivals", "cause"),
    [
        ([["says 2"], ["says 1"]], "says 2"),
        ([["says 2"], ["ends 1"]], "says 2"),
        ([["ends 2"], ["says 1"]], None),
        ([["says 1", "ends 2"], ["says 3"]], None),
        ([["ends 2"], ["ends 1"]], None),
    ],
)
def test_the_first_failure_to_arrive_is_the_cause(arrivals: list[list[str]], cause: str | None) -> None:
    """In whichever rank; a silent death goes before what arrives with it. None: the death of rank 2."""
    pipes = [Pipe() for _ in range(3)]
    followers = [Follower(rank, killed(), ours) for rank, (ours, _) in enumerate(pipes, 1)]
    for arrival, events in enumerate(arrivals):
        for event in events:
            _, theirs = pipes[int(event[-1]) - 1]
            if event.startswith("says"):
                theirs.send_bytes(msgspec.msgpack.encode(Fatal(exception="LookupError", message=event, traceback="")))
            else:
                theirs.close()
        assert hear(followers, arrival, 1)
    found = cause_of(followers)
    if cause is not None:
        assert found.message == cause
    else:
        assert str(followers[1].process.pid) in found.message
    for follower in followers:
        follower.process.communicate()


class Stuck:
    """A process in a call of the kernel that no signal interrupts."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def kill(self) -> None:
        self._events.append("kill")

    def wait(self, timeout: float | None = None) -> int:
        self._events.append("wait")
        assert timeout is not None
        assert timeout <= END_WITHIN_S
        raise subprocess.TimeoutExpired("rank", timeout)


def test_all_ranks_are_killed_before_any_is_waited_for() -> None:
    """And none for ever."""
    events: list[str] = []
    end([cast(Any, Stuck(events)) for _ in range(3)])
    assert events == ["kill"] * 3 + ["wait"] * 3
