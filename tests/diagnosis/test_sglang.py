# ruff: noqa: E501 - log lines are as long as they are
"""SGLang's logs: its own flags are told, and nothing is a patch of a profile."""

from __future__ import annotations

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.sglang_flags import in_flags
from appliance.profile.schema import BY_KEY
from appliance.protocol import Diagnosis, Fix

BEGIN = "[2026-11-20 10:00:00] server_args=ServerArgs(model_path='/m', mem_fraction_static={})\n"
ENDED = """\
[2026-11-20 10:00:09 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/sglang/srt/managers/scheduler.py", line 23, in run_scheduler_process
    scheduler = Scheduler(
  File "/opt/sglang/srt/model_executor/odd_runner.py", line 9, in start
    raise RuntimeError(
"""


def told(text: str) -> Diagnosis:
    found = diagnose(number_lines(text))
    assert found.fix is not None
    assert not found.fix.patch
    return found


@pytest.mark.parametrize(
    ("now", "message", "cause", "then"),
    [
        ("0.7", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "no-room-for-cache", "0.75"),
        ("0.9", "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB.",
         "gpu-out-of-memory", "0.8"),
    ],
)  # fmt: skip
def test_its_share_of_the_memory_is_told_by_its_own_flag(now: str, message: str, cause: str, then: str) -> None:
    found = told(f"{BEGIN.format(now)}{ENDED}{message}\n")
    assert (found.family, found.cause) == ("memory", cause)
    assert found.fix is not None
    assert f"--mem-fraction-static to {then}" in found.fix.text


def test_a_choice_that_it_refuses_is_none_of_a_profile() -> None:
    """Nor is the line that refuses it a list of settings."""
    found = told("launch_server.py: error: argument --dtype: invalid choice: 'uneve' (choose from 'even', 'uneven')")
    assert found.fix is not None
    assert "--dtype" in found.fix.text
    assert "uneven" in found.fix.text
    assert found.summary.count("uneve'") == 1


def test_what_it_has_no_flag_for_is_left_out() -> None:
    fix = in_flags(Fix(text="Do.", patch={"max-num-seqs": 4, "vllm.environment.VLLM_ODD": "1", "dtype": None}))
    assert fix == Fix(text="Do. Set --max-running-requests to 4. Remove --dtype.")
    assert in_flags(Fix(text="Do.")) == Fix(text="Do.")


def test_each_key_is_one_of_a_profile() -> None:
    from appliance.diagnosis.sglang_flags import FLAGS

    assert all(key in BY_KEY or key.startswith("vllm.extra-args.") for key in FLAGS)
