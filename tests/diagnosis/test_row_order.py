# ruff: noqa: ISC004
"""Which of several rows that fit counts: the one that fits most closely, wherever it stands in the files."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from appliance.diagnosis import catalogue
from appliance.diagnosis.catalogue import causes_of
from appliance.diagnosis.causes import CATALOGUE
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.protocol import Diagnosis
from tests.diagnosis.shared_logs import FOLDER, entries
from tests.diagnosis.test_cause_families import LINES

# (text, the row that counts, one that also fits)
OVERLAPS = (
    ("ModuleNotFoundError: No module named 'cuda.bindings'", "cuda-python-missing", "package-missing"),
    ("/tmp/a.c:1:10: fatal error: Python.h: No such file or directory", "python-headers-missing", "header-missing"),
    ("pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, "
     "User-specified max_model_len (9) is greater than the derived max_model_len (max_position_embeddings=8)",
     "context-too-long", "setting-refused"),
    ("PermissionError: [Errno 13] Permission denied: '/.triton'", "cache-not-writable", "permission-denied"),
    ("RuntimeError: CUDA error /odd/ll.cu:3 'too many blocks in cooperative launch'", "deepep-needs-its-topology",
     "launch-refused"),
)  # fmt: skip


@pytest.fixture(params=range(3))
def shuffled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    rows = list(CATALOGUE)
    random.Random(request.param).shuffle(rows)
    monkeypatch.setattr(catalogue, "CATALOGUE", tuple(rows))
    _forget()
    yield
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    catalogue._rows_by_word.cache_clear()
    catalogue._causes_of.cache_clear()


def _told(text: str) -> Diagnosis:
    return diagnose(number_lines(text), failed=True)


@pytest.fixture(scope="module")
def in_order() -> dict[str, Diagnosis]:
    logs = [(FOLDER / row["file"]).read_text(errors="replace") for row in entries()]
    return {text: _told(text) for text in (*(line for _, _, line in LINES), *logs)}


@pytest.mark.parametrize(("text", "counts", "also"), OVERLAPS, ids=[counts for _, counts, _ in OVERLAPS])
def test_the_row_that_fits_most_closely_counts(text: str, counts: str, also: str) -> None:
    assert [match.cause.name for match in causes_of(text)][-1] == counts
    assert any(cause.name == also and cause.match(text, text.lower()) is not None for cause in CATALOGUE)


@pytest.mark.usefixtures("shuffled")
def test_the_order_of_the_rows_changes_no_answer(in_order: dict[str, Diagnosis]) -> None:
    assert {text: _told(text) for text in in_order} == in_order
