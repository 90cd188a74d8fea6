"""What carries a log: loggers that write objects, journals, pastes from a terminal, the newest line first."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from appliance.diagnosis import excerpt, log_text
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines, read_log
from appliance.diagnosis.wrapping import oldest_first, rejoined
from appliance.protocol import Outcome

KIND, SAID = "torch.OutOfMemoryError", (
    "CUDA out of memory. Tried to allocate 7.00 GiB. GPU 0 has a total capacity of 23.50 GiB of which 1.25 GiB is free."
)  # fmt: skip
FRAMES = (
    "Traceback (most recent call last):",
    '  File "/opt/vllm/v1/worker/gpu_worker.py", line 9, in execute_model',
    "    output = self.model_runner.execute_model(scheduler_output)",
    '  File "/opt/vllm/v1/worker/gpu_model_runner.py", line 99, in execute_model',
    "    hidden_states = self.model(input_ids)",
)
LINES = (*FRAMES, f"{KIND}: {SAID}")
TRACEBACK = "\n".join(LINES)
PREFIX = "(EngineCore_DP0 pid=77) ERROR 11-20 10:02:11 [core.py:708] "
HEADED = "\n".join(f"{PREFIX}{line}" for line in ("EngineCore failed to start.", *LINES))

RECORDS: dict[str, dict[str, Any]] = {
    "exc_info as a text": {"exc_info": TRACEBACK},
    "exc_info as lines": {"exc_info": list(LINES)},
    "exc_info as Python has it": {"exc_info": [f"<class '{KIND}'>", SAID, "<traceback object at 0x7f>"]},
    "exc_info in parts": {"exc_info": {"type": KIND, "value": SAID, "traceback": "\n".join(FRAMES)}},
    "an exception in parts": {"exception": {"type": KIND, "message": SAID, "stacktrace": TRACEBACK}},
    "elastic's": {"error": {"type": KIND, "message": SAID, "stack_trace": TRACEBACK}},
    "elastic's without frames": {"error": {"type": KIND, "message": SAID}},
    "elastic's with dots": {"error.type": KIND, "error.message": SAID},
    "opentelemetry's": {
        "attributes": {"exception.type": KIND, "exception.message": SAID, "exception.stacktrace": TRACEBACK}
    },
    "opentelemetry's body": {"body": {"stringValue": TRACEBACK}},
    "opentelemetry's pairs": {
        "attributes": [
            {"key": "exception.type", "value": {"stringValue": KIND}},
            {"key": "exception.message", "value": {"stringValue": SAID}},
        ]
    },
    "zap's": {"error": f"{KIND}: {SAID}", "stacktrace": "main.run\n\t/src/run.go:9"},
    "zap's, verbose": {"error": "engine failed", "errorVerbose": TRACEBACK},
    "bunyan's": {"err": {"name": KIND, "message": SAID, "stack": TRACEBACK}},
    "node's": {"err": {"type": KIND, "message": SAID, "stack": TRACEBACK}},
}


@pytest.mark.parametrize("form", RECORDS)
@pytest.mark.parametrize("indent", [None, 2], ids=["a line", "several lines"])
def test_an_exception_in_a_record_is_read(form: str, indent: int | None) -> None:
    """Also where the record is written over several lines."""
    said = {} if "body" in RECORDS[form] else {"message": "EngineCore failed to start."}
    text = json.dumps({"time": "2026-11-20T10:02:11Z", "level": "ERROR"} | said | RECORDS[form], indent=indent)
    found = diagnose(number_lines(f"{text}\n"))
    assert (found.outcome, found.cause) == (Outcome.FAILED, "gpu-out-of-memory")


@pytest.mark.parametrize(
    "record",
    [
        {"L": "ERROR", "T": "2026-11-20T10:02:11Z", "M": TRACEBACK},
        {"name": "engine", "level": 60, "msg": f"{KIND}: {SAID}"},
        {"resourceLogs": [{"scopeLogs": [{"logRecords": [
            {"severityText": "INFO", "body": {"stringValue": "begins"}},
            {"severityText": "ERROR", "body": {"stringValue": TRACEBACK}},
        ]}]}]},
    ],
    ids=["zap's short names", "bunyan's numbers", "a batch of opentelemetry's"],
)  # fmt: skip
def test_an_error_in_other_fields_is_read(record: dict[str, Any]) -> None:
    assert diagnose(number_lines(json.dumps(record))).cause == "gpu-out-of-memory"


@pytest.mark.parametrize(
    ("number", "level"), [(60, "FATAL"), (50, "ERROR"), (40, "WARNING"), (30, "INFO"), (20, "DEBUG")]
)
def test_a_level_may_be_a_number(number: int, level: str) -> None:
    assert [line.text for line in number_lines(json.dumps({"level": number, "msg": "a word"}))] == [f"{level} a word"]


def test_batches_within_batches_end() -> None:
    depth = 300
    text = '{"logRecords": [' * depth + '{"body": "x"}' + "]}" * depth
    assert number_lines(text)


def test_a_printed_object_is_left_as_it_is() -> None:
    """Such as a model's config."""
    text = json.dumps({"hidden_size": 9, "vocab_size": 77}, indent=2)
    assert [line.text for line in number_lines(text)] == text.split("\n")


def broken(text: str, width: int) -> str:
    return "\n".join(line[at : at + width] for line in text.split("\n") for at in range(0, len(line), width))


def wrapped(text: str, width: int) -> str:
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, width, break_on_hyphens=False))


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("breaks", [broken, wrapped])
@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_paste_from_a_terminal_is_put_together(breaks: Callable[[str, int], str], width: int, end: str) -> None:
    """With the values that the edge cut through."""
    found = diagnose(number_lines(breaks(HEADED, width).replace("\n", end)))
    assert (found.outcome, found.cause) == (Outcome.FAILED, "gpu-out-of-memory")
    assert "7.00" in found.summary


def test_lines_that_nothing_broke_stay_apart() -> None:
    """Short ones, and full ones before a bare traceback."""
    short = [(1, "INFO a"), (2, "b")]
    assert rejoined(short) == short
    full = [(at, f"{PREFIX}{'x' * 40}") for at in range(20)] + [(20 + at, line) for at, line in enumerate(LINES)]
    assert rejoined(full) == full


def test_the_newest_line_first_is_turned_round() -> None:
    stamped = [f"2026-11-20T10:02:{at:02}Z {line}" for at, line in enumerate(("INFO begins", *LINES), start=10)]
    found = diagnose(number_lines("\n".join(reversed(stamped))))
    assert (found.outcome, found.cause) == (Outcome.FAILED, "gpu-out-of-memory")
    in_order = [(at, text) for at, text in enumerate(stamped)]
    assert oldest_first(in_order) == in_order


@pytest.mark.parametrize("end", ["", "\n"], ids=["no end", "an end"])
def test_its_lines_are_counted_from_the_end(end: str) -> None:
    stamped = [f"2026-11-20T10:02:{at:02}Z step {at}" for at in range(10, 30)]
    assert [(line.number, line.text) for line in number_lines("\n".join(reversed(stamped)) + end)] == list(
        enumerate(stamped, start=1)
    )


def test_the_newest_line_first_is_turned_round_in_a_long_log_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which an excerpt is read: the same as of the log in order."""
    monkeypatch.setattr(log_text, "WHOLE_BYTES", 1 << 16)
    monkeypatch.setattr(excerpt, "PIECE_BYTES", 1000)
    noise = [f"INFO request {at:08x} took {at} ms" for at in range(3000)]
    said = [*noise[:2000], *LINES, *noise[2000:]]
    stamped = [f"2026-11-20 {10 + at // 3600}:{at // 60 % 60:02}:{at % 60:02} {text}" for at, text in enumerate(said)]
    forwards, backwards = tmp_path / "forwards.log", tmp_path / "backwards.log"
    forwards.write_text("\n".join(stamped) + "\n")
    backwards.write_text("\n".join(reversed(stamped)) + "\n")
    assert read_log(backwards) == read_log(forwards)
    assert diagnose(read_log(backwards), failed=True).cause == "gpu-out-of-memory"


def test_ranks_that_write_into_one_stream_without_a_tag_are_read() -> None:
    """Line by line, one a line behind the other."""
    text = "\n".join(
        line for pair in zip_longest(LINES, ("INFO 11-20 10:02:11 [x.py:1] a", *LINES)) for line in pair if line
    )
    assert diagnose(number_lines(text)).cause == "gpu-out-of-memory"


@pytest.mark.parametrize("end", [b"\0\n", b"\0"], ids=["a NUL before each line's end", "a NUL as the end"])
def test_nuls_at_the_ends_of_lines_are_no_text(end: bytes, tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_bytes(HEADED.encode().replace(b"\n", end))
    assert diagnose(read_log(path)).cause == "gpu-out-of-memory"


def test_a_field_of_several_byte_arrays_is_read() -> None:
    """As a journal writes one that was given twice."""
    record = {"_PID": "77", "MESSAGE": [list(b"EngineCore failed to start."), list(TRACEBACK.encode())]}
    assert diagnose(number_lines(json.dumps(record))).cause == "gpu-out-of-memory"


def test_the_newest_line_first_is_turned_round_though_two_processes_overlap() -> None:
    """One writes its line a second late."""
    stamped = [f"2026-11-23 10:00:{second:02} INFO step {second}" for second in range(30)]
    stamped[10], stamped[11] = stamped[11], stamped[10]
    assert [line.text for line in number_lines("\n".join(reversed(stamped)))] == stamped
    assert [line.text for line in number_lines("\n".join(stamped))] == stamped
