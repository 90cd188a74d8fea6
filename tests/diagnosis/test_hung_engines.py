"""What is said of an engine that hangs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.stuck_processes import stuck_processes
from appliance.engine_process import waits
from appliance.engine_process.process_tree import descendants, state_of
from appliance.engine_process.stacks import dump_stacks
from appliance.engine_process.waits import held_locks

IN_A_COLLECTIVE = """Process 7: python -m vllm
Python v3.12

Thread 7 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2900)
"""


def test_a_process_that_was_stopped_is_no_riddle() -> None:
    """Wherever it stood when it was stopped: its stack is not the cause, and no setting fixes it."""
    found = diagnose([], hang="process 7 (python) has been stopped (SIGSTOP) for 5 s", stacks=IN_A_COLLECTIVE)
    assert (found.family, found.cause) == ("hang", "stopped")
    assert found.fix is not None
    assert found.fix.patch is None
    otherwise = diagnose([], hang="no heartbeat from the core for 15 s", stacks=IN_A_COLLECTIVE)
    assert otherwise.cause != "stopped"


@pytest.mark.parametrize("named", ["nvcc", "ptxas", "cicc"])
def test_a_compiler_that_hangs_is_found_as_the_supervisor_writes_it(named: str, tmp_path: Path) -> None:
    """By what the processes of a real family are."""
    compiler = tmp_path / named
    compiler.symlink_to(shutil.which("sleep") or "/bin/sleep")
    process = subprocess.Popen(["sh", "-c", f"{compiler} 600 & wait"])
    try:
        deadline = time.monotonic() + 30
        while f"{compiler} 600" not in (stacks := dump_stacks(process.pid)).replace(f"-c {compiler}", ""):
            assert time.monotonic() < deadline
        found = diagnose([], hang="no progress in the compile phase for 900 s", stacks=stacks)
    finally:
        subprocess.run(["pkill", "-P", str(process.pid)], check=False)
        process.kill()
        process.wait()
    assert (found.family, found.cause) == ("jit-toolchain", "compiling")


@contextmanager
def waiting(code: str, *arguments: str, until: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """A process that waits, and what is written of it once it does."""
    process = subprocess.Popen([sys.executable, "-c", code, *arguments])
    try:
        deadline = time.monotonic() + 30
        while not until(stacks := dump_stacks(process.pid)):
            assert time.monotonic() < deadline, stacks
            assert state_of(process.pid) not in ("Z", "")
        yield process.pid, stacks
    finally:
        process.kill()
        process.wait()


def test_who_waits_for_a_lock_is_told_with_its_file_and_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "kernels.lock"
    code = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX)"
    holder = f"{code}; import time; time.sleep(600)"
    with (
        waiting(holder, str(path), until=lambda _: is_locked(path)) as (holds, _),
        waiting(code, str(path), until=lambda text: "Waits for the lock" in text) as (waits, stacks),
    ):
        found = diagnose([], hang="no progress in the weights phase for 900 s", stacks=stacks)
        assert (found.family, found.cause) == ("jit-toolchain", "build-lock")
        assert f"Process {waits}" in found.summary
        assert f"{path}, held by process {holds}" in found.summary
        assert found.fix is not None
        assert found.fix.command == f"kill {holds}"
        told = diagnose([], hang="no progress", stacks=stacks.replace(str(path), f"{path} 2"))
        assert told.fix is not None
        assert (told.fix.command, told.fix.look) == (None, f"ps -fp {holds}")


def is_locked(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_who_waits_for_a_socket_is_told_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"
        address = f"{host}:{port}"
        with waiting(code, str(port), until=lambda text: f"Waits for data from the socket {address}" in text) as (
            _,
            text,
        ):
            (stuck,) = stuck_processes(text)
            assert (stuck.place.cause, address in stuck.at) == ("waits-for-socket", True)


def test_who_waits_for_a_pipe_is_told(tmp_path: Path) -> None:
    code = "import os; os.read(os.pipe()[0], 1)"
    with waiting(code, until=lambda text: "Waits for data from a pipe" in text) as (_, text):
        (stuck,) = stuck_processes(text)
        assert stuck.place.cause == "waits-for-worker"


def test_who_opens_a_pipe_that_nobody_writes_to_is_told_with_its_path(tmp_path: Path) -> None:
    """In a thread beside the main one, too."""
    path = tmp_path / "weights.safetensors"
    os.mkfifo(path)
    code = "import sys, threading; threading.Thread(target=open, args=(sys.argv[1],)).start()"
    with waiting(code, str(path), until=lambda text: "Waits for the other end" in text) as (pid, stacks):
        found = diagnose([], hang="no progress in the weights phase for 900 s", stacks=stacks)
    assert (found.family, found.cause) == ("hang", "waits-for-opener")
    assert f"Process {pid}" in found.summary
    assert str(path) in found.summary


def test_who_tries_for_a_lock_is_told_with_those_that_are_held(tmp_path: Path) -> None:
    """It waits for none in the kernel: a process that looks again every tenth of a second."""
    path = tmp_path / "graphs.lock"
    code = "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); time.sleep(600)"
    with waiting(code, str(path), until=lambda _: is_locked(path)) as (holds, _):
        polls = process(7, "_poll (filelock/_unix.py:9)", "compile (torch/_inductor/codecache.py:9)")
        (told,) = stuck_processes("\n".join([*held_locks(), polls]))
    assert told.place.cause == "build-lock"
    assert f"process {holds} holds {path}" in told.at


def test_who_has_the_other_end_is_told() -> None:
    code = "import os, time; ends = os.pipe(); os.fork() or time.sleep(600); os.close(ends[1]); os.read(ends[0], 1)"
    with waiting(code, until=lambda text: "whose other end process" in text) as (pid, text):
        (child,) = descendants(pid)
        assert f"Waits for data from a pipe, whose other end process {child} has" in text
        os.kill(child, signal.SIGKILL)


def test_who_waits_for_a_child_comes_after_the_child() -> None:
    code = "import os; child = os.fork(); os.waitpid(child, 0) if child else os.read(os.pipe()[0], 1)"
    with waiting(code, until=lambda text: "to end" in text and "from a pipe" in text) as (pid, text):
        (child,) = descendants(pid)
        assert [stuck.process.pid for stuck in stuck_processes(text)] == [str(child), str(pid)]
        os.kill(child, signal.SIGKILL)


def test_where_nothing_else_shows_the_innermost_frames_are_told() -> None:
    stacks = process(7, "own_wait (own.py:9)", "main (own.py:1)", command="VLLM::EngineCore")
    found = diagnose([], hang="no heartbeat", stacks=stacks)
    assert found.cause == "no-progress"
    assert "EngineCore (process 7)" in found.summary
    assert "own_wait (own.py:9)" in found.summary


def process(pid: int, *frames: str, command: str = "vllm", thread: str = "MainThread") -> str:
    return f'Process {pid}, state S: {command}\nThread {pid} (idle): "{thread}"\n' + "".join(
        f"    {f}\n" for f in frames
    )


def test_every_process_is_told_and_the_one_that_works_comes_first() -> None:
    """Two ranks wait for a third, which compiles; the server waits for them all."""
    stacks = (
        process(1, "acquire_read (vllm/shm_broadcast.py:500)", command="VLLM::EngineCore")
        + process(2, "all_reduce (torch/distributed/distributed_c10d.py:9)", command="VLLM::Worker_TP0")
        + process(3, "wait (threading.py:3)", "compile (triton/compiler/compiler.py:300)", command="VLLM::Worker_TP1")
        + process(4, "all_reduce (torch/distributed/distributed_c10d.py:9)", command="VLLM::Worker_TP2")
    )
    found = stuck_processes(stacks)
    assert [(stuck.name, stuck.place.cause) for stuck in found] == [
        ("Worker_TP1 (process 3)", "compiling"),
        ("Worker_TP0 (process 2)", "waits-in-collective"),
        ("Worker_TP2 (process 4)", "waits-in-collective"),
        ("EngineCore (process 1)", "waits-for-worker"),
    ]
    told = diagnose([], hang="no heartbeat", stacks=stacks)
    assert told.cause == "compiling"
    assert all(name in told.summary for name in ("Worker_TP1 (process 3)", "Worker_TP0 (process 2)", "4", "EngineCore"))


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        (("_acquire (filelock/_unix.py:9)", "compile (triton/compiler/compiler.py:9)"), "build-lock"),
        (("all_reduce (torch/distributed/distributed_c10d.py:9)", "load_weights (vllm/a.py:9)"), "waits-in-collective"),
        (("read (safetensors/torch.py:9)", "load_weights (vllm/a.py:9)"), "slow-storage"),
        (("synchronize (torch/cuda/streams.py:3)", "run (flashinfer/autotuner.py:9)"), "tuning"),
        (("synchronize (torch/cuda/streams.py:3)", "step (vllm/v1/engine/core.py:9)"), "gpu-does-not-finish"),
        (("wait (threading.py:9)", "main (own.py:9)"), None),
    ],
)
def test_the_innermost_frame_of_a_domain_counts(frames: tuple[str, ...], cause: str | None) -> None:
    found = stuck_processes(process(7, *frames))
    assert [stuck.place.cause for stuck in found] == ([cause] if cause else [])


def test_another_thread_counts_where_the_main_one_only_waits() -> None:
    text = process(7, "wait_for_ready (vllm/v1/executor.py:9)")
    text += 'Thread 9 (active): "compile"\n    compile (triton/compiler/compiler.py:300)\n'
    assert [stuck.place.cause for stuck in stuck_processes(text)] == ["compiling"]


def test_a_helper_that_always_waits_explains_nothing() -> None:
    command = "python -c from multiprocessing.resource_tracker import main;main(7)"
    assert stuck_processes(process(7, "recv (socket.py:9)", command=command)) == []


def test_a_lock_on_another_device_is_on_no_file_of_the_same_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inodes are numbered anew on each file system."""
    path, locks = tmp_path / "graphs.lock", tmp_path / "locks"
    monkeypatch.setattr(waits, "LOCKS", locks)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        number = f":{os.fstat(file.fileno()).st_ino} "
        (line,) = (line for line in Path("/proc/locks").read_text().splitlines() if number in line)
        locks.write_text(f"{line}\n")
        assert held_locks() == [f"Lock on {path}, held by process {os.getpid()}"]
        before, _, after = line.partition(number)
        locks.write_text(f"{before.rpartition(' ')[0]} fff:7{number}{after}\n")
        assert held_locks() == []


def test_a_file_is_on_the_device_that_is_mounted_there() -> None:
    """As mountinfo has it, where stat says the same: on all but btrfs."""
    with Path("/proc/self/status").open() as file:
        assert waits._mounted_device(os.getpid(), str(file.fileno())) == os.fstat(file.fileno()).st_dev
    assert waits._mounted_device(os.getpid(), "none") is None


READING = """Process 9, state S, in x: VLLM::Worker
Thread 9 (idle): "MainThread"
    safetensors_weights_iterator (vllm/model_executor/model_loader/weight_utils.py:1208)
Waits for the other end of the pipe /m/model.safetensors to be opened, which no process has open
"""
RENDEZVOUS = """Process 9, state S, in x: VLLM::Worker
Thread 9 (idle): "MainThread"
    _create_c10d_store (torch/distributed/rendezvous.py:199)
Waits for a connection to the socket 127.0.0.1:43413, at which process 7 listens
"""
TELEMETRY = """Process 9, state S, in x: VLLM::Worker
Thread 9 (idle): "MainThread"
    {frame}
Waits for a connection to the socket 10.0.0.9:443
"""
POLLING = """Lock on /c/a.lock, held by process 8
Lock on /c/b.lock, held by process 8
Process 9, state S, in x: VLLM::Worker
Thread 9 (idle): "MainThread"
    _poll_until_acquired (filelock/_core/_acquire.py:177)
"""


AWAITING = """Process 7, state S, in x: VLLM::Worker
Waits for the lock on {path}, held by process {pid}
Process 9, state S, in x: VLLM::EngineCore
"""
LOOK = "find ~/.cache ~/.triton -name '*.lock' -print"


@pytest.mark.parametrize(
    ("stacks", "cause", "said", "command"),
    [
        (READING, "waits-for-opener", "/m/model.safetensors", None),
        (RENDEZVOUS, "waits-for-connection", "127.0.0.1:43413, at which process 7 listens", None),
        (POLLING, "build-lock", "process 8 holds /c/a.lock and 1 more", LOOK),
        (AWAITING.format(path="/c/a.lock", pid=99999999), "build-lock", "99999999", "ps -fp 99999999"),
        (AWAITING.format(path="/c/process 8 holds /c/a, held by process 77", pid=99999999), "build-lock", "99999999",
         "ps -fp 99999999"),
        (AWAITING.format(path="/c/a.lock", pid=0), "build-lock", "process 0", LOOK),
        (AWAITING.format(path="/c/a.lock", pid=1), "build-lock", "process 1", LOOK),
        (AWAITING.format(path="/c/a.lock", pid=9), "build-lock", "process 9", LOOK),
        (AWAITING.format(path="/c/held by process 8", pid="?"), "build-lock", "process 8", LOOK),
    ],
)  # fmt: skip
def test_what_the_kernel_knows_counts_before_a_frame(stacks: str, cause: str, said: str, command: str | None) -> None:
    found = diagnose([], hang="no progress", stacks=stacks)
    assert (found.cause, said in found.summary) == (cause, True)
    assert found.fix is not None
    assert (found.fix.command, found.fix.look) == (None, command)


@pytest.mark.parametrize(
    ("frame", "cause"),
    [
        ("all_reduce (torch/distributed/distributed_c10d.py:9)", "waits-in-collective"),
        ("synchronize (torch/cuda/streams.py:9)", "gpu-does-not-finish"),
        ("read (safetensors/torch.py:9)", "slow-storage"),
        ("compile (triton/compiler/compiler.py:9)", "compiling"),
        ("_create_c10d_store (torch/distributed/rendezvous.py:9)", "waits-for-connection"),
        ("connect (own/client.py:9)", "waits-for-connection"),
        ("wait (threading.py:9)", "waits-for-connection"),
    ],
)
def test_a_connection_explains_only_what_itself_waits_for_it(frame: str, cause: str) -> None:
    """Any thread may have one that nobody answers."""
    (told,) = stuck_processes(TELEMETRY.format(frame=frame))
    assert told.place.cause == cause
    assert "10.0.0.9:443" in told.at


def test_a_connection_that_nobody_answers_is_told_with_who_listens() -> None:
    """The other side accepts none, and its queue is full: the connection stays unanswered, whoever polls for it."""
    with socket.socket() as server, contextlib.ExitStack() as clients:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        address = f"127.0.0.1:{server.getsockname()[1]}"
        told = waits.waits_of(os.getpid())
    assert f"Waits for a connection to the socket {address}, at which process {os.getpid()} listens" in told
