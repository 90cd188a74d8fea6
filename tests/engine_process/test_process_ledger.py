"""Which process of an engine ended first, and how, told from outside: with real processes and real signals."""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from appliance.engine_process import process_ledger
from appliance.engine_process.process_ledger import ProcessLedger, status_of_ended
from appliance.engine_process.process_tree import descendants
from appliance.launches.process_names import name_of
from appliance.protocol import ProcessEnd

SLEEP = "import time; time.sleep(600)"
# A parent that waits for its workers, as engines do, and exits with 1 when one of them has gone. Between one end and
# the next a busy machine gets to run who watches.
ENGINE = f"""
import subprocess, sys, time
workers = [subprocess.Popen([sys.executable, "-c", {SLEEP!r}, "worker", str(rank)]) for rank in range(2)]
print(*(worker.pid for worker in workers), flush=True)
while all(worker.poll() is None for worker in workers):
    time.sleep(0.01)
for worker in workers:
    time.sleep(0.3)
    worker.terminate()
    worker.wait()
time.sleep(0.3)
sys.exit(1)
"""
WITHIN_S = 30


class Watched:
    def __init__(self, process: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(process_ledger, "LOOK_S", 0.05)
        self.process = process
        self.told: queue.Queue[ProcessEnd] = queue.Queue()
        self.ledger = ProcessLedger(process.pid, self.told.put)
        self.ledger.heard(1, ["starting"] * 7)

    def knows(self, *pids: int) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not {*pids} <= {process.pid for process in self.ledger._watched.values() if process.command}:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def next(self) -> ProcessEnd:
        return self.told.get(timeout=WITHIN_S)


@contextmanager
def watched(code: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Watched, list[int]]]:
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    pids = list(map(int, process.stdout.readline().split()))
    found = Watched(process, monkeypatch)
    try:
        found.knows(process.pid, *pids)
        yield found, pids
    finally:
        for pid in (process.pid, *pids):
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found.ledger.close()


def test_the_worker_that_was_killed_comes_before_its_parent_and_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though none of them is a child of who watches, and the parent asks for their status at once."""
    with watched(ENGINE, monkeypatch) as (engine, workers):
        os.kill(workers[1], signal.SIGKILL)
        engine.process.wait()
        ends = [engine.next(), engine.next(), engine.next()]
        assert [(end.pid, end.status) for end in ends] == [
            (workers[1], -signal.SIGKILL),
            (workers[0], -signal.SIGTERM),
            (engine.process.pid, 1),
        ]
        assert [end.line for end in ends] == [7, 7, 7]
        assert not any(end.aftermath for end in ends)


def test_what_is_ended_after_the_main_process_is_aftermath(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(ENGINE, monkeypatch) as (engine, workers):
        os.kill(engine.process.pid, signal.SIGSEGV)
        engine.process.wait()
        first = engine.next()
        assert (first.pid, first.status, first.aftermath) == (engine.process.pid, -signal.SIGSEGV, False)
        os.kill(workers[0], signal.SIGKILL)
        second = engine.next()
        assert (second.pid, second.status, second.aftermath) == (workers[0], -signal.SIGKILL, True)


def test_what_ingot_ends_is_aftermath(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(ENGINE, monkeypatch) as (engine, workers):
        engine.ledger.expect_ends()
        os.kill(workers[0], signal.SIGKILL)
        end = engine.next()
        assert (end.aftermath, end.by_ingot) == (True, True)


def test_what_ended_by_itself_is_no_aftermath_however_late_it_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ingot may begin to end the rest before the thread has seen who ended first."""
    late = threading.Event()
    status_of = process_ledger.status_of_ended
    monkeypatch.setattr(process_ledger, "status_of_ended", lambda *ended: (late.wait(WITHIN_S), status_of(*ended))[1])
    with watched(ENGINE, monkeypatch) as (engine, workers):
        os.kill(workers[1], signal.SIGKILL)
        wait_for_end(workers[1])
        engine.ledger.expect_ends()
        late.set()
        first = engine.next()
        assert (first.pid, first.status, first.aftermath, first.by_ingot) == (workers[1], -signal.SIGKILL, False, False)
        engine.process.wait()
        assert [engine.next().by_ingot, engine.next().by_ingot] == [True, True]


def test_what_is_read_after_an_end_is_later_than_it_however_late_the_end_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A parent reports the death of its worker within a millisecond; the thread that reads the log may be first."""
    late = threading.Event()
    status_of = process_ledger.status_of_ended
    monkeypatch.setattr(process_ledger, "status_of_ended", lambda *ended: (late.wait(WITHIN_S), status_of(*ended))[1])
    with watched(ENGINE, monkeypatch) as (engine, workers):
        engine.ledger.heard(8, ["before"])
        os.kill(workers[1], signal.SIGKILL)
        wait_for_end(workers[1])
        engine.ledger.heard(9, ["EngineCore encountered a fatal error.", "RuntimeError"])
        engine.ledger.heard(11, ["Failed core proc(s)"])
        late.set()
        assert engine.next().line == 8


def wait_for_end(pid: int) -> None:
    handle = os.pidfd_open(pid)
    select.select([handle], [], [], WITHIN_S)
    os.close(handle)


def test_one_look_that_fails_does_not_end_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(ENGINE, monkeypatch) as (engine, workers):
        failed = threading.Event()

        def fails_once(root: int) -> list[int]:
            if not failed.is_set():
                failed.set()
                raise ValueError("no number")
            return descendants(root)

        monkeypatch.setattr(process_ledger, "descendants", fails_once)
        assert failed.wait(WITHIN_S)
        os.kill(workers[0], signal.SIGKILL)
        # On a busy machine all have ended by the next look.
        assert workers[0] in {engine.next().pid for _ in range(3)}


def test_closing_writes_into_no_other_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the thread has died, and its numbers are somebody else's by now."""
    process = subprocess.Popen(["sleep", "600"])
    monkeypatch.setattr(ProcessLedger, "_look", lambda ledger: ledger._closing.set())
    monkeypatch.setattr(process_ledger, "LOOK_S", 0.01)
    ledger = ProcessLedger(process.pid, lambda _end: None)
    ledger._thread.join(WITHIN_S)
    others = [end for _ in range(8) for end in socket.socketpair()]
    ledger.close()
    for end in others:
        end.setblocking(False)
        with pytest.raises(BlockingIOError):
            end.recv(1)
    for end in others:
        end.close()
    process.kill()
    process.wait()


def test_closing_does_not_wait_for_a_process_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_ledger, "CLOSE_S", 0.05)
    reading, released = threading.Event(), threading.Event()

    def blocks(_pid: int) -> list[str]:
        reading.set()
        released.wait(WITHIN_S)
        return []

    monkeypatch.setattr(process_ledger, "command_of", blocks)
    process = subprocess.Popen(["sleep", "600"])
    ledger = ProcessLedger(process.pid, lambda _end: None)
    assert reading.wait(WITHIN_S)
    ledger.close()
    assert ledger._thread.is_alive()
    released.set()
    ledger._thread.join(WITHIN_S)
    process.kill()
    process.wait()


def test_a_command_line_is_not_read_again_once_its_process_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(ENGINE, monkeypatch) as (engine, workers):
        engine.ledger.heard(8, [f"(Worker_TP1 pid={workers[1]}) INFO ready"])
        read: queue.Queue[int] = queue.Queue()

        def command_of(pid: int) -> list[str]:
            read.put(pid)
            return ["python"]

        monkeypatch.setattr(process_ledger, "command_of", command_of)
        assert workers[1] not in {read.get(timeout=WITHIN_S) for _ in range(6)}


def test_the_main_process_has_its_name_though_its_command_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had ended before the ledger came."""
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    told: queue.Queue[ProcessEnd] = queue.Queue()
    ledger = ProcessLedger(process.pid, told.put, "core")
    end = told.get(timeout=WITHIN_S)
    ledger.close()
    process.wait()
    assert (end.name, end.status, ledger.main_end) == ("core", 3, end)


def test_names_of_processes_that_are_not_there_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(ENGINE, monkeypatch) as (engine, workers):
        engine.ledger.heard(8, [f"(Worker_TP1 pid={workers[1]}) INFO ready"])
        for number in range(2 * process_ledger.MAX_NAMES):
            engine.ledger.heard(8, [f"(x pid={900_000_000 + number}) INFO ready"])
        deadline = time.monotonic() + WITHIN_S
        while engine.ledger._named != {workers[1]: "Worker_TP1"}:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_of_very_many_ends_the_first_are_told_and_the_main_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_ledger, "MAX_ENDS", 2)
    code = f"import subprocess, sys; them = [subprocess.Popen([sys.executable, '-c', {SLEEP!r}]) for _ in range(4)]\n"
    code += f"print(*(one.pid for one in them), flush=True); [one.wait() for one in them]; {SLEEP}"
    with watched(code, monkeypatch) as (engine, pids):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + WITHIN_S
        while len(engine.ledger._watched) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(engine.process.pid, signal.SIGKILL)
        assert {engine.next().pid, engine.next().pid} < {*pids}
        assert engine.next().pid == engine.process.pid


def test_a_process_has_the_name_that_its_log_lines_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(ENGINE, monkeypatch) as (engine, workers):
        engine.ledger.heard(8, [f"(Worker_TP1 pid={workers[1]}) INFO ready"])
        os.kill(workers[1], signal.SIGKILL)
        ends = {end.pid: end for end in (engine.next() for _ in range(3))}
        assert ends[workers[1]].name == "Worker_TP1"


def test_a_helper_counts_only_where_a_signal_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that the kernel killed explains a failure; one that is done does not."""
    code = "import subprocess, time; dies = subprocess.Popen(['sleep', '600']); print(dies.pid, flush=True); "
    code += "dies.wait(); time.sleep(0.5)"
    with watched(code, monkeypatch) as (engine, (dies,)):
        os.kill(dies, signal.SIGKILL)
        told = engine.next()
        assert (told.pid, told.name, told.status) == (dies, "sleep", -signal.SIGKILL)
    quiet = "import subprocess; done = subprocess.Popen(['sleep', '0.5']); print(done.pid, flush=True); done.wait()"
    with watched(quiet, monkeypatch) as (engine, _):
        assert engine.next().pid == engine.process.pid


@pytest.mark.parametrize("ending", [0, 3, -signal.SIGKILL])
def test_a_status_is_told_of_a_zombie(ending: int) -> None:
    """Whose parent has not asked yet, as on kernels whose handles keep no status."""
    code = f"import os, sys; os.kill(os.getpid(), {-ending}) if {ending} < 0 else sys.exit({ending})"
    process = subprocess.Popen([sys.executable, "-c", code])
    handle = os.pidfd_open(process.pid)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert status_of_ended(process.pid, handle) == ending
    process.wait()
    os.close(handle)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["VLLM::EngineCore_DP0"], "EngineCore_DP0"),
        (["/usr/bin/python3", "-m", "appliance.engine", "--connect", "/tmp/x"], "core"),
        (["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"], "spawned process"),
        (["python", "-c", "from multiprocessing.resource_tracker import main;main(7)"], "resource tracker"),
        (["/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve", "/models/m"], "vllm"),
        (["/usr/local/cuda/bin/ptxas", "-v"], "ptxas"),
        ([], "process"),
    ],
)
def test_a_process_is_named_by_its_command(command: list[str], name: str) -> None:
    assert name_of(command) == name
