"""Logs of which only a part was kept: the head of a traceback is missing, or its end."""

from __future__ import annotations

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.protocol import Outcome

HEADLESS = (
    '  File "/opt/x/lib/hub/api.py", line 9, in info\n    raise ValueError(name)\n'
    "hub.errors.RepositoryNotFoundError: 401 Client Error.\n\nRepository Not Found for url: https://hub.example/odd9\n"
)
LOGGED = "ERROR 11-20 10:02:11 [engine.py:400] "
CUT = (
    f"{LOGGED}Cache directory not found: /srv/odd9\nProcess SpawnProcess-1:\n"
    f"{LOGGED}Traceback (most recent call last):\n"
    f'{LOGGED}  File "/opt/vllm/engine.py", line 9, in run\n{LOGGED}    start()'
)


@pytest.mark.parametrize(
    "start",
    ["INFO 11-20 10:02:11 [__init__.py:2] Automatically detected platform cuda.",
     "INFO 11-20 10:02:11 [api_server.py:2] vLLM API server version 0.32.0"],
)  # fmt: skip
def test_another_start_is_not_the_same_process_going_on(start: str) -> None:
    found = diagnose(number_lines(f"{HEADLESS}{start}"))
    assert (found.outcome, found.family) == (Outcome.FAILED, "offline")


def test_a_process_that_goes_on_has_survived() -> None:
    found = diagnose(number_lines(f"{HEADLESS}INFO 11-20 10:02:11 [core.py:2] Loading weights took 3.00 seconds"))
    assert found.outcome is not Outcome.FAILED


def test_the_message_logged_before_a_traceback_stands_for_its_lost_end() -> None:
    """Another process may write in between."""
    found = diagnose(number_lines(CUT))
    assert found.outcome is Outcome.FAILED
    assert "/srv/odd9" in found.summary


def test_an_announcement_is_no_message() -> None:
    announced = CUT.replace("Cache directory not found: /srv/odd9", "EngineCore failed to start.")
    assert diagnose(number_lines(announced)).family is None


def test_an_assertion_without_a_message_is_told_with_its_code() -> None:
    """Also where only the end of its traceback is left."""
    end = (
        f'{LOGGED}  File "/opt/vllm/v1/spec_decode/odd.py", line 9, in f\n{LOGGED}    assert odd_size == 9\n'
        f"{LOGGED}           ^^^^^^^^^^\n{LOGGED}AssertionError"
    )
    found = diagnose(number_lines(end))
    assert found.family == "config"  # the draft model's
    assert "odd_size == 9" in found.summary
    assert found.fix is not None


@pytest.mark.parametrize(
    ("line", "family"),
    [
        ("ValueError: Telemetry must be installed before configuring 'odd_endpoint'", "config"),
        ("Server error: 500 - [pid=9] AsyncEngineArgs.__init__() got an unexpected keyword argument 'odd'", "config"),
        ("| m | 1 | UNAVAILABLE: TypeError: make_from_engine_args() got an unexpected keyword argument 'odd' |", "abi"),
        ("AttributeError: OddTokenizer has no attribute tokens_extended", "abi"),
        ("AttributeError: 'SpeculativeConfig' object has no attribute 'odd'", "abi"),
        ("Failed: Cuda error /w/csrc/custom_all_reduce.cuh:9 'invalid argument'", "nccl"),
        ("ERROR 11-20 10:02:11 [x.py:9] [gloo/x.cc:8] Timed out waiting 9000ms for send operation to complete",
         "multi-node"),
        ("ValueError: Selected backend X is not valid for this configuration. Reason: ['kv_cache_dtype not supported']",
         "backend"),
        ("vllm serve: error: argument --odd-config/-oc: Value {{1}} cannot be converted to <function loads at 0x9>.",
         "config"),
        ("ValueError: invalid literal for int() with base 10: 'tcp://10.0.0.9:8000'", "config"),
    ],
)  # fmt: skip
def test_one_line_is_enough(line: str, family: str) -> None:
    found = diagnose(number_lines(line))
    assert (found.outcome, found.family) == (Outcome.FAILED, family)
    assert found.fix is not None
