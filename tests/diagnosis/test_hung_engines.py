"""What is said of an engine that hangs."""

from __future__ import annotations

from appliance.diagnosis.diagnose import diagnose

IN_A_COLLECTIVE = """Process 7: python -m vllm
Python v3.12

Thread 7 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2900)
"""


def test_a_process_that_was_stopped_is_no_riddle() -> None:
    """Wherever it stood when it was stopped: its stack is no cause, and no setting mends it."""
    found = diagnose([], hang="process 7 (python) has been stopped (SIGSTOP) for 5 s", stacks=IN_A_COLLECTIVE)
    assert (found.family, found.cause) == ("hang", "stopped")
    assert found.fix is not None
    assert found.fix.patch is None
    otherwise = diagnose([], hang="the core has said nothing for 15 s", stacks=IN_A_COLLECTIVE)
    assert otherwise.cause != "stopped"
