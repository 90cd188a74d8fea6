"""The baseline beside the diagnosis: the last exception that a log shows."""

from __future__ import annotations

import pytest

from tests.diagnosis.last_exception import last_exception


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["ValueError: first", "RuntimeError: See root cause above."], "RuntimeError: See root cause above."),
        (
            ["x.ValidationError: 1 error", "size", "  too small", "INFO: end"],
            "x.ValidationError: 1 error\nsize\n  too small",
        ),
        (["vllm serve: error: argument --dtype: no", "", "bye"], "vllm serve: error: argument --dtype: no"),
        (["(Worker pid=3) ERROR 11-26 [x.py:9] KeyError: 'a'"], "(Worker pid=3) ERROR 11-26 [x.py:9] KeyError: 'a'"),
        (["WARNING this can cause errors like OSError: 24"], ""),
        ([], ""),
    ],
)
def test_the_last_one_with_its_message(lines: list[str], shown: str) -> None:
    assert last_exception(lines) == shown
