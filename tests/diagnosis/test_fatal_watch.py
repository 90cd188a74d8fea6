"""Noticing the exception that ends an engine, while it runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from appliance.diagnosis.fatal_watch import FatalWatch
from appliance.diagnosis.traceback_reader import LoggedException
from tests.diagnosis import made_up_logs as logs
from tests.diagnosis.shared_logs import HEALTHY_SHARED


def watch(text: str) -> tuple[int, LoggedException | None]:
    """The number of the line at which it answers."""
    fatal_watch = FatalWatch()
    for number, line in enumerate(text.split("\n"), start=1):
        if (found := fatal_watch.feed(number, line)) is not None:
            assert all(fatal_watch.feed(number, line) is None for line in text.split("\n")), "it answers once"
            return number, found
    return 0, None


@pytest.mark.parametrize("log", [logs.HEALTHY_VLLM, logs.HEALTHY_SGLANG, logs.HEALTHY_VLLM * 3], ids=str.__len__)
def test_a_healthy_start_never_fires(log: str) -> None:
    """Neither what a logger tells as a warning, nor a request's error, nor an advisory that quotes an exception."""
    assert watch(log) == (0, None)


@pytest.mark.parametrize("path", HEALTHY_SHARED, ids=lambda path: path.name)
def test_real_healthy_starts_never_fire(path: Path) -> None:
    """Of engines of several years."""
    assert watch(path.read_text(errors="replace")) == (0, None)


@pytest.mark.parametrize(
    ("log", "answered_at", "type_", "line"),
    [
        (logs.VLLM_WORKERS, 9, "torch.OutOfMemoryError", 9),
        (logs.VLLM_ARGUMENT, 6, "pydantic_core._pydantic_core.ValidationError", 6),
        (logs.SGLANG_SCHEDULER, 8, "torch.OutOfMemoryError", 8),
        (logs.NATIVE, 7, "LookupError", 7),
        (logs.HEALTHY_VLLM.partition("(APIServer pid=40) INFO:")[0] + logs.NATIVE, 24, "LookupError", 24),
        ("INFO all is well\nFatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):", 2,
         "Fatal Python error", 2),
    ],
)  # fmt: skip
def test_a_failing_start_fires_with_the_last_line_of_its_traceback(
    log: str, answered_at: int, type_: str, line: int
) -> None:
    """At once, and with the first process's own exception."""
    number, found = watch(log)
    assert found is not None
    assert (number, found.type, found.line.number) == (answered_at, type_, line)


def test_of_a_chain_the_first_link_is_reported() -> None:
    """The engine says once that it failed; what follows it is of the same failure."""
    _, found = watch(logs.CHAIN)
    assert found is not None
    assert found.headline == "OSError: [Errno 28] No space left on device"


def test_a_pointer_is_reported_by_what_it_points_at() -> None:
    """The core waits for its workers; the worker's exception stands above, without a word that it is fatal."""
    log = logs.VLLM_WORKERS.replace("WorkerProc failed to start.", "Something happened.")
    _, found = watch(log)
    assert found is not None
    assert found.type == "torch.OutOfMemoryError"


def test_each_prefix_of_what_carries_the_log_is_read_through() -> None:
    """Docker compose, Kubernetes, the journal, and colours."""
    for prefix in ("vllm-1  | ", "2025-11-20T10:02:11.123456789Z stderr F ", "Nov 20 10:02:11 spark vllm[9]: ",
                   "\x1b[36m[pod/vllm-0/engine]\x1b[0m ", "2025-11-20 10:02:11 "):  # fmt: skip
        log = "\n".join(prefix + line for line in logs.VLLM_WORKERS.split("\n"))
        number, found = watch(log)
        assert found is not None, prefix
        assert (number, found.type) == (9, "torch.OutOfMemoryError")


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=7) ERROR 11-20 10:02:11 [serving.py:12] model `Fatal Python error: hello` does not exist",
        'INFO:     127.0.0.1:1 - "GET /Fatal Python error: x HTTP/1.1" 404 Not Found',
        "ERROR 11-20 10:02:11 [serving.py:12] Fatal Python error: hello",
    ],
)
def test_words_of_a_client_are_no_crash(line: str) -> None:
    """A request's model name is logged: nobody may end an engine by asking for one."""
    watch = FatalWatch()
    assert watch.feed(1, line) is None
    found = watch.feed(2, "(EngineCore_DP0 pid=9) Fatal Python error: Segmentation fault")
    assert found is not None
    assert found.headline == "Fatal Python error: Segmentation fault"


def test_a_refused_command_line_is_the_end() -> None:
    """The program needs seconds to leave after it."""
    watch = FatalWatch()
    assert watch.feed(1, "usage: vllm serve [model_tag] [options]") is None
    assert watch.feed(2, "(APIServer pid=7) INFO 11-20 10:02:11 [x.py:1] vllm serve: error: said a client") is None
    found = watch.feed(3, "vllm serve: error: argument --dtype: invalid choice: 'float12'")
    assert found is not None
    assert found.headline.startswith("vllm serve: error: argument --dtype")


def test_it_keeps_up_with_a_flood_and_stays_small() -> None:
    """A line costs microseconds, whether a traceback stands open or not."""
    fatal_watch = FatalWatch()
    lines = [f"(EngineCore_DP0 pid=77) INFO 11-20 10:02:11 [core.py:12] step {n}, nothing to see" for n in range(2000)]
    began = time.process_time()
    for round_ in range(50):
        fatal_watch.feed(0, f"(Worker pid={round_}) Traceback (most recent call last):")
        for number, line in enumerate(lines):
            assert fatal_watch.feed(number, line) is None
    assert 100_000 / (time.process_time() - began) > 30_000, "a tenth of what it does on a quiet machine"
