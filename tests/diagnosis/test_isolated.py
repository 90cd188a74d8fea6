"""A diagnosis in its own process: the same answer, a deadline, and something to say when there is no answer."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from appliance.core_protocol import Fatal
from appliance.diagnosis import isolated
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.isolated import Circumstances, budget_for, diagnose_isolated, last_errors
from appliance.diagnosis.log_text import number_lines
from tests.diagnosis import made_up_logs as logs
from tests.running import processor_s


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "engine.log"
    path.write_text(logs.VLLM_WORKERS)
    return path


def test_it_answers_as_in_this_process(log: Path) -> None:
    """And within a second of processor time: whoever started the engine waits for it."""
    profile = {"gpu-memory-utilization": 0.6}
    began = processor_s()
    answer = diagnose_isolated(log, Circumstances(exit_status=1, profile=profile))
    took = processor_s() - began
    assert answer.complete
    assert answer.headline is not None
    assert answer.headline.startswith("torch.OutOfMemoryError")
    lines = number_lines(logs.VLLM_WORKERS)
    assert answer.diagnosis == diagnose(lines, exit_status=1, profile=profile, failed=True)
    assert took < 1.0


def test_the_end_of_a_hung_engine_is_no_evidence(log: Path) -> None:
    """What it wrote as it was ended is left out."""
    hung = Circumstances(hang="no heartbeat for 15 s")
    assert diagnose_isolated(log, hung).diagnosis.cause == "gpu-out-of-memory"
    answer = diagnose_isolated(log, Circumstances(hang="no heartbeat for 15 s", last_line=3))
    assert answer.diagnosis.cause == "no-progress"


SLOW = """
import os, sys, time
open(sys.argv[1], "w").write(str(os.getpid()))
sys.stdin.read()
time.sleep(60)
open(sys.argv[1], "a").write(" slept on")
"""


@pytest.mark.parametrize(
    "script", [SLOW, "raise SystemExit(3)", "print('no JSON')"], ids=["too slow", "ends", "says something else"]
)
def test_without_an_answer_the_last_errors_are_reported(
    script: str, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a stated outcome, and the process is gone."""
    notes = tmp_path / "notes"
    notes.touch()
    monkeypatch.setattr(isolated, "WORKER", (sys.executable, "-c", script, str(notes)))
    answer = diagnose_isolated(log, Circumstances(exit_status=1), budget_s=0.5)
    assert not any(psutil.pid_exists(int(pid)) for pid in notes.read_text().split())
    assert not answer.complete
    found = answer.diagnosis
    assert (found.family, found.cause) == (None, None)
    assert found.fix is not None
    assert found.fix.look is not None
    lines = logs.VLLM_WORKERS.split("\n")
    assert [lines[line.number - 1].strip() for line in found.evidence] == [line.text for line in found.evidence]
    assert "Engine core initialization failed" in found.evidence[-1].text


def test_a_status_is_reported_without_an_answer(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's word too, and what the core itself said."""
    monkeypatch.setattr(isolated, "WORKER", (sys.executable, "-c", SLOW, os.devnull))
    killed = diagnose_isolated(log, Circumstances(exit_status=-signal.SIGKILL), budget_s=0.2)
    assert killed.diagnosis.cause == "killed"
    kernel = diagnose_isolated(log, Circumstances(exit_status=-9, killed_by_kernel="oom_kill 0 -> 1"), budget_s=0.2)
    assert kernel.diagnosis.cause == "oom-killed"
    fatal = Fatal(exception="LookupError", message="gone\nfor good", traceback="")
    assert diagnose_isolated(log, Circumstances(fatal=fatal), budget_s=0.2).headline == "LookupError: gone"


def test_where_no_process_can_be_had_it_is_done_in_this_one(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine may have failed for the same reason."""
    monkeypatch.setattr(isolated, "WORKER", (str(log.parent / "no-python"),))
    answer = diagnose_isolated(log, Circumstances(exit_status=1))
    assert answer.complete
    assert answer.diagnosis.cause == "gpu-out-of-memory"


def test_the_last_errors_of_a_long_log_have_their_numbers(tmp_path: Path) -> None:
    """Though only its end is read; and of a log that is not there, nothing."""
    path = tmp_path / "engine.log"
    path.write_text("INFO all is well\n" * 50_000 + "ERROR it is not\n" + "INFO all is well\n" * 10)
    (line,) = last_errors(path)
    assert (line.number, line.text) == (50_001, "ERROR it is not")
    assert last_errors(tmp_path / "none.log") == []
    assert budget_for(tmp_path / "none.log") == isolated.BUDGET_S
