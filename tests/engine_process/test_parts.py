"""The small parts of a supervised engine, each by itself: log, deadlines, ends in words; and the lock of the home."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine_process.deadlines import FLOORS_S, SILENCE_S, Watch
from appliance.engine_process.log_capture import MAX_LINE_BYTES, LineSplitter, LogCapture
from appliance.exit_status import exit_in_words, how_it_ended
from appliance.home import Home
from appliance.home_lock import HomeInUseError, Owner, OwnerLock
from appliance.launches.catalogue import Catalogue
from appliance.launches.states import TRANSITIONS, check_transition
from appliance.protocol import LaunchRecord, Phase, PhaseRecord, State


def test_the_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    """By process, address and time; and the lock is free again when its holder lets go."""
    path = tmp_path / "serve.lock"
    lock = OwnerLock(path)
    with pytest.raises(HomeInUseError) as refused:
        OwnerLock(path)
    assert refused.value.owner is None
    lock.sign(Owner(pid=os.getpid(), host="127.0.0.1", port=8000, started=0.0))
    with pytest.raises(HomeInUseError, match=rf"process {os.getpid()}, http://127.0.0.1:8000"):
        OwnerLock(path)
    lock.release()
    OwnerLock(path).release()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    """The kernel lets go for it."""
    path = tmp_path / "serve.lock"
    code = "from appliance.home_lock import OwnerLock; from pathlib import Path; import os, time\n"
    code += f"lock = OwnerLock(Path({str(path)!r})); print('held', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(HomeInUseError):
        OwnerLock(path)
    process.kill()
    process.wait()
    process.stdout.close()
    OwnerLock(path).release()


@given(data=st.binary(max_size=2000), cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_lines_do_not_depend_on_how_they_are_read(data: bytes, cuts: list[int]) -> None:
    """Cut anywhere, even within a character: the same lines."""
    whole = LineSplitter()
    expected = whole.feed(data) + whole.finish()
    pieces = LineSplitter()
    got: list[str] = []
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for begin, end in itertools.pairwise(edges):
        got += pieces.feed(data[begin:end])
    assert got + pieces.finish() == expected


def test_an_endless_line_takes_no_endless_memory() -> None:
    """Ten megabytes without an end of line are kept as one cut line that says how much is missing."""
    splitter = LineSplitter()
    for _ in range(100):
        assert splitter.feed(b"y" * 100_000) == []
        assert len(splitter._partial) <= MAX_LINE_BYTES
    (line,) = splitter.feed(b"\n")
    assert line.endswith(f"[{10_000_000 - MAX_LINE_BYTES:,} more bytes cut]")


@pytest.mark.parametrize("name", ["missing/engine.log", "full"])
def test_a_log_that_cannot_be_written_is_read_nevertheless(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """More than a pipe holds: an engine never blocks on its own log. The live view has the lines."""
    (tmp_path / "full").symlink_to("/dev/full")
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0) as source, os.fdopen(write, "wb") as engine:
        capture = LogCapture(source, tmp_path / name)
        engine.write(b"a line of the log\n" * 20_000)
        engine.close()
        assert capture.drained(10)
    assert capsys.readouterr().err.count("cannot write") == 1
    first, lines = capture.take()
    assert first + len(lines) - 1 == 20_000


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exit status 0"),
        (7, "exit status 7"),
        (-9, "killed by SIGKILL"),
        (-11, "killed by SIGSEGV"),
        (-35, "killed by signal 35"),
    ],
)
def test_exits_in_words(status: int, words: str) -> None:
    """As a person would say it."""
    assert exit_in_words(status).startswith(words)


def test_what_killed_a_process_is_left_to_the_diagnosis() -> None:
    """It has looked for the kernel's record; its guess and another would stand on one page."""
    assert exit_in_words(-9) == how_it_ended(-9)
    assert exit_in_words(-11) != how_it_ended(-11)


def test_every_state_is_in_the_table() -> None:
    """And an ended launch cannot begin again."""
    assert set(TRANSITIONS) == set(State)
    with pytest.raises(AssertionError, match="cannot go from failed to ready"):
        check_transition(State.FAILED, State.READY)


def good(seconds: float) -> LaunchRecord:
    phase = PhaseRecord(phase=Phase.WEIGHTS, started=0.0, seconds=seconds)
    return LaunchRecord(id="a", profile="x", started=0.0, phases=[phase])


def test_a_learned_deadline_is_three_times_the_last_good_launch_or_the_floor() -> None:
    """Movement does not extend it; without a good launch before, standing still is what counts."""
    watch = Watch(good(100.0), 0.0)
    watch.phase(Phase.WEIGHTS, 0.0)
    watch.phase(Phase.WEIGHTS, 299.0)
    assert watch.overdue(300.0) is None
    overdue = watch.overdue(301.0) or ""
    assert Phase.WEIGHTS in overdue
    assert "301 s" in overdue
    assert "100.0 s" in overdue
    assert Watch(good(1.0), 0.0).limit_s(Phase.WEIGHTS) == FLOORS_S[Phase.WEIGHTS]
    fresh = Watch(None, 0.0)
    for now in range(0, 1000, 100):
        fresh.phase(Phase.WEIGHTS, now)
        assert fresh.overdue(now + 99) is None
    fresh.phase(Phase.WEIGHTS, 1000, ended=True)
    assert fresh.overdue(10_000) is None


def test_silence_counts_from_the_first_word_and_not_while_we_slept() -> None:
    """A core that has not said hello is under the deadline of its phase instead."""
    watch = Watch(None, 0.0)
    assert watch.overdue(1000.0) is None
    watch.heard(1000.0, "loading", 3.0)
    assert watch.overdue(1000.0 + SILENCE_S) is None
    overdue = watch.overdue(1001.0 + SILENCE_S) or ""
    assert f"{SILENCE_S + 1:.0f} s" in overdue
    assert "'loading' for 3 s" in overdue
    watch.excuse(1010.0)
    assert watch.overdue(1001.0 + SILENCE_S) is None


def test_a_step_has_its_limit_and_waiting_has_none() -> None:
    """A GPU is given a minute for one; an idle core may be idle for days."""
    watch = Watch(None, 0.0)
    watch.runs_on("cuda:0")
    watch.heard(1.0, "step", 60.0)
    assert watch.overdue(1.0) is None
    watch.heard(2.0, "step", 61.0)
    assert "61 s" in (watch.overdue(2.0) or "")
    watch.heard(3.0, "idle", 100_000.0)
    assert watch.overdue(3.0) is None


def test_the_parts_import_no_torch() -> None:
    """Nor anything else that would make the first answer wait."""
    code = "import sys, appliance.serving.server; print(sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for module in ("torch", "numpy", "transformers", "tokenizers", "jinja2", "rich", "sqlalchemy", "prometheus_client"):
        assert f"'{module}'" not in loaded


def test_a_fault_of_who_listens_does_not_stop_the_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine would block on its own log; the error is reported once."""
    read, write = os.pipe()

    def listen(_first: int, _lines: list[str]) -> None:
        raise ZeroDivisionError

    with os.fdopen(read, "rb", buffering=0) as source:
        capture = LogCapture(source, tmp_path / "log", listen)
        for line in (b"one\n", b"two\n"):
            os.write(write, line)
            time.sleep(0.05)
        os.close(write)
        assert capture.drained(5)
    assert (tmp_path / "log").read_text() == "one\ntwo\n"
    assert capsys.readouterr().err.count("Traceback") == 1


def test_a_folder_that_may_not_be_read_ends_no_launch(home: Home) -> None:
    """A launch that somebody ran as another user is passed over."""
    (home.launch("20260101-000000-0000") / "launch.json").mkdir(parents=True)
    assert [*Catalogue(home).newest(20)] == []
