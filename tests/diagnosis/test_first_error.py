"""The first sign of trouble in the log of an engine that starts."""

from __future__ import annotations

import pytest

from appliance.diagnosis.first_error import FirstError

HEALTHY = (
    "(EngineCore pid=9) INFO 11-20 17:35:02 [core.py:133] Initializing a V1 LLM engine",
    "(EngineCore pid=9) WARNING 11-20 17:35:02 [x.py:1] ImportError: no module named x, falling back to y",
    "(EngineCore pid=9) ERROR 11-20 17:35:02 [fa.py:9] Cannot use FA version 3, falling back to 2",
    "INFO: loaded with VLLM_LOG_ON_ERROR: 1",
    "Traceback (most recent call last):",
)


@pytest.mark.parametrize(
    "error",
    [
        "(EngineCore pid=9) ERROR 11-20 17:35:03 [core.py:1093] EngineCore failed to start.",
        "ValueError: the frobnicator is empty",
        "[2026-11-20 17:35:03] CRITICAL - cannot open the device",
    ],
)
def test_the_first_line_that_reports_an_error_is_told_once(error: str) -> None:
    watch = FirstError()
    assert [watch.feed(number, line) for number, line in enumerate(HEALTHY, 1)] == [None] * len(HEALTHY)
    found = watch.feed(9, error)
    assert found is not None
    assert found.number == 9
    assert found.text in error
    assert watch.feed(10, error) is None
