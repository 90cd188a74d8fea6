"""What is said of an engine that hangs."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.engine_process.stacks import dump_stacks

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
