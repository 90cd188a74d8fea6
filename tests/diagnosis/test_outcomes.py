# ruff: noqa: E501 - log lines are as long as they are
"""What a log proves: that its engine serves, that it failed, how far it got, or nothing."""

from __future__ import annotations

import random

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.protocol import Diagnosis, Outcome
from tests.diagnosis import made_up_logs as logs
from tests.diagnosis.shared_logs import HEALTHY_SHARED

WINDOW = 20
WINDOWS = 2000


def told(text: str, **known: object) -> Diagnosis:
    return diagnose(number_lines(text), **known)  # type: ignore[arg-type]


READY = "INFO:     Started server process [7]\nINFO:     Application startup complete.\n"
ANSWER = 'INFO:     10.0.0.9:1234 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
BEGIN = "(APIServer pid=40) INFO 11-20 10:02:12 [api.py:11] non-default args: {'model': '/m'}\n"
LOADING = "(EngineCore pid=7) INFO 11-20 10:02:15 [gpu_model_runner.py:2602] Starting to load model /m...\n"
SHARDS = "\rLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.00s/it]\n"
QUIET = "(EngineCore pid=7) INFO 11-20 10:09:59 [x.py:1] a word of no consequence\n"


@pytest.mark.parametrize(
    "text",
    [
        READY,
        BEGIN + LOADING + READY,
        READY + ANSWER,
        ANSWER,
        "[2025-11-20 10:04:21] The server is fired up and ready to roll!\n",
        "2025-11-20T10:04:21.123456Z  INFO text_generation_router::server: router/src/server.rs:2402: Connected\n",
        BEGIN + READY + "INFO:     Shutting down\n" + BEGIN + READY,
    ],
)
def test_readiness_is_proved_by_a_line(text: str) -> None:
    """Which is the evidence."""
    found = told(text)
    assert found.outcome is Outcome.SERVES
    assert len(found.evidence) == 1


@pytest.mark.parametrize(
    ("after", "outcome"),
    [
        ("INFO:     Shutting down\nINFO:     Application shutdown complete.\n", Outcome.NOT_READY),
        (BEGIN, Outcome.NOT_READY),
        ("ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use\n",
         Outcome.FAILED),
        ("Killed\n", Outcome.FAILED),
    ],
)  # fmt: skip
def test_what_comes_later_takes_readiness_back(after: str, outcome: Outcome) -> None:
    assert told(BEGIN + READY + after).outcome is outcome


CORE = "(EngineCore pid=7) ERROR 11-20 10:12:00 [core.py:12] "
API = "(APIServer pid=40) ERROR 11-20 10:12:00 [serving.py:91] "
WORKS = "(EngineCore pid=7) INFO 11-20 10:12:01 [core.py:15] the prefix cache was reset\n"


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        (f"{CORE}RuntimeError: the step is torn\n", Outcome.FAILED),
        (f"{CORE}RuntimeError: the step is torn\n{WORKS}", Outcome.SERVES),
        (f"{API}ValueError: the prompt is too long\n", Outcome.SERVES),
        (f"{CORE}EngineCore encountered a fatal error.\n", Outcome.FAILED),
        (f"{API}AsyncLLM output_handler failed.\n", Outcome.FAILED),
        ("odd.broker.BrokerError: the broker is gone\n", Outcome.FAILED),
        (f"odd.broker.BrokerError: the broker is gone\n{ANSWER}", Outcome.SERVES),
        ("(APIServer pid=40) CRITICAL 11-20 10:12:00 [launcher.py:4] nobody is left\n", Outcome.FAILED),
        ("thread 'main' panicked at src/lib.rs:9: no frame\n", Outcome.FAILED),
        ("Fatal Python error: drop_gil: no thread\n", Outcome.FAILED),
        ("box-1 exited with code 3\n", Outcome.FAILED),
        ("box-1 exited with code 0\n", Outcome.SERVES),
        (('Traceback (most recent call last):\n  File "/app/run.py", line 3, in <module>\n    go()\n'
         "LookupError: no such lane\n"), Outcome.FAILED),
        (('Traceback (most recent call last):\n  File "/x/threading.py", line 3, in run\n    go()\n'
         "LookupError: no such lane\n"), Outcome.SERVES),
    ],
)  # fmt: skip
def test_the_end_of_a_server_is_told_from_an_error_that_it_survives(last: str, outcome: Outcome) -> None:
    """An error of a process that serves no requests, or one that no logger wrote, with nothing after it."""
    assert told(BEGIN + READY + ANSWER + last).outcome is outcome


def test_the_port_that_is_taken_is_named() -> None:
    found = told(
        READY
        + "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use\n"
    )
    assert (found.family, found.cause) == ("port", "address-in-use")
    assert "8000" in found.summary


@pytest.mark.parametrize("words", ["Application startup complete.", '1.2.3.4:5 - "GET /health HTTP/1.1" 200 OK'])
def test_a_prompt_proves_nothing(words: str) -> None:
    """Whatever a client wrote: only what the server itself says counts."""
    line = f"INFO 11-20 10:05:00 [logger.py:43] Received request 1: prompt: '{words}'\n"
    assert told(line).outcome is Outcome.NOT_READY


def test_nor_does_a_part_that_found_another() -> None:
    assert told("INFO 11-20 10:05:00 [connector.py:43] Connected\n").outcome is Outcome.NOT_READY


def test_of_a_start_its_last_step_is_told_with_its_beginning() -> None:
    """The first line of the step, and the last; what a step does not own does not end it."""
    found = told(BEGIN + LOADING + SHARDS + QUIET)
    assert found.outcome is Outcome.NOT_READY
    assert [line.number for line in found.evidence] == [2, 3]
    assert "11-20 10:02:15" in found.summary
    assert (found.family, found.fix) == (None, None)


@pytest.mark.parametrize(
    "text", ["", "\n \n", "apples\npears\n", "total 12\ndrwxr-xr-x 2 root root 4096 Nov 20 10:00 models\n"]
)
def test_of_no_log_nothing_can_be_told(text: str) -> None:
    assert told(text).outcome is Outcome.UNCLEAR


TRACEBACK = """\
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12] EngineCore failed to start.
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12]   File "/opt/vllm/v1/engine/core.py", line 9, in run
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12]     self.load()
(EngineCore pid=7) ERROR 11-20 10:02:11 [core.py:12]   File "/opt/vllm/model_loader/loader.py", line 3, in load
"""


@pytest.mark.parametrize("lines", [2, 3, 4, 5])
@pytest.mark.parametrize("before", [BEGIN, BEGIN + READY + ANSWER])
def test_a_traceback_that_the_end_cuts_off_is_a_failure(before: str, lines: int) -> None:
    """With its innermost places for evidence."""
    found = told(before + "".join(TRACEBACK.splitlines(keepends=True)[:lines]))
    assert (found.outcome, found.cause) == (Outcome.FAILED, None)
    first = len(before.splitlines()) + 1
    assert all(line.number >= first for line in found.evidence)


def test_what_ends_in_the_middle_of_a_cores_traceback_served_no_more() -> None:
    """Readiness before it or not: no process that computes goes on after one."""
    cut = 'Traceback (most recent call last):\n  File "/opt/vllm/v1/engine/core.py", line 9, in run_busy_loop\n    self.step()\n'
    assert told(READY + ANSWER + cut).outcome is Outcome.FAILED


def test_a_request_in_whose_traceback_a_log_ends_is_none() -> None:
    """The server answers it with an error, and goes on."""
    request = 'ERROR 11-20 10:09:00 [serving.py:91] Traceback (most recent call last):\nERROR 11-20 10:09:00 [serving.py:91]   File "/opt/vllm/serving.py", line 77, in create\n'
    assert told(BEGIN + READY + request).outcome is Outcome.SERVES


def test_a_start_that_waits_may_yet_succeed() -> None:
    """Unless somebody knows that it failed."""
    wait = (
        "(EngineCore pid=7) INFO 11-20 10:0{}:00 [shm.py:9] No available shared memory broadcast block found in 60 s\n"
    )
    text = "".join(wait.format(minute) for minute in range(3))
    assert (told(text).outcome, told(text).cause) == (Outcome.NOT_READY, "waits-for-worker")
    assert told(text, failed=True).outcome is Outcome.FAILED
    assert told(READY + text).outcome is Outcome.FAILED


HEALTHY = [logs.HEALTHY_SGLANG, *(path.read_text(errors="replace") for path in HEALTHY_SHARED)]


def test_no_window_of_a_healthy_log_is_a_failure() -> None:
    """Wherever somebody cut twenty lines out of it."""
    rng = random.Random(17)
    wrong = set()
    for _ in range(WINDOWS):
        lines = rng.choice(HEALTHY).split("\n")
        start = rng.randrange(max(1, len(lines) - WINDOW + 1))
        found = told("\n".join(lines[start : start + WINDOW]))
        if found.outcome is Outcome.FAILED:
            wrong.add(found.summary)
    assert not wrong


@pytest.mark.parametrize(
    "survived",
    [
        "Error in sitecustomize; set PYTHONVERBOSE for traceback:\nModuleNotFoundError: No module named 'odd'",
        "libgomp: Invalid value for environment variable OMP_NUM_THREADS",
    ],
)
def test_what_a_process_starts_without_is_no_failure(survived: str) -> None:
    start = "(EngineCore pid=7) INFO 11-20 10:00:00 [core.py:1] Loading"
    found = diagnose(number_lines(f"{start}\n{survived}\n{start} weights"))
    assert found.outcome is not Outcome.FAILED


def test_what_waits_for_an_engine_that_was_asked_to_end_is_told_so_by_no_failure() -> None:
    """vLLM's server ends its engine's processes, and its own reader of their answers logs that they are dead."""
    begins = "(APIServer pid=40) INFO 11-20 10:09:00 [launcher.py:254] [shutdown] API server: shutdown triggered\n"
    reader = "(APIServer pid=40) ERROR 11-20 10:09:00 [async_llm.py:906] "
    dead = (
        f"{reader}AsyncLLM output_handler failed.\n{reader}Traceback (most recent call last):\n"
        f'{reader}  File "/x/vllm/v1/engine/core_client.py", line 1235, in get_output_async\n'
        f"{reader}    raise self._format_exception(outputs) from None\n"
        f"{reader}vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
    )
    ends = "INFO:     Shutting down\nINFO:     Application shutdown complete.\n"
    core = "(EngineCore pid=7) ERROR 11-20 10:08:59 [core.py:9] EngineCore failed: device lost\n"
    prompt = begins.replace("[shutdown]", "Received request: prompt: '[shutdown]")
    assert told(BEGIN + READY + begins + dead + ends).outcome is Outcome.NOT_READY
    for failed in (
        BEGIN + READY + dead,
        BEGIN + READY + begins + ends + BEGIN + READY + dead,
        BEGIN + READY + begins + ends + BEGIN + LOADING + dead,
        BEGIN + READY + prompt + dead,
        BEGIN + READY + core + begins + dead + ends,
        BEGIN + READY + begins + dead.replace("pid=40", "pid=41"),
        BEGIN + READY + begins + dead + "(EngineCore pid=7) CRITICAL 11-20 10:09:01 [core.py:9] no way on\n",
    ):
        assert told(failed).outcome is Outcome.FAILED, failed
