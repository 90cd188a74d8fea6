"""Lines out of what carried them: records in JSON, journals, and what a container runtime cut."""

from __future__ import annotations

import json

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.dressing import plain, undress
from appliance.diagnosis.log_text import number_lines

LINES = (
    "Traceback (most recent call last):",
    '  File "/opt/vllm/a.py", line 5, in x',
    "    f()",
    "OSError: [Errno 28] No space left on device",
)
TEXT = "\n".join(LINES)
FRAMES = [{"filename": "/opt/vllm/a.py", "lineno": 5, "name": "x"}]


def record(**fields: object) -> str:
    return json.dumps(fields) + "\n"


RECORDS = {
    "exc_info": record(level="ERROR", message="EngineCore failed to start.", exc_info=TEXT),
    "exc_info as lines": record(level="ERROR", message="it failed", exc_info=list(LINES)),
    "exc_text alone": record(levelname="ERROR", exc_text=TEXT),
    "exception beside an event": record(severity="ERROR", event="it failed", exception=TEXT),
    "elastic": record(**{"log.level": "error", "message": "it failed", "error": {"stack_trace": TEXT}}),
    "elastic, dotted": record(message="it failed", **{"error.stack_trace": TEXT}),
    "structlog": record(
        level="error",
        event="it failed",
        exception=[{"exc_type": "OSError", "exc_value": "[Errno 28] No space left on device", "frames": FRAMES}],
    ),
    "loguru": record(text=f"it failed\n{TEXT}\n", record={"level": {"name": "ERROR"}}),
    "a journal's bytes": "".join(record(MESSAGE=list(line.encode()), PRIORITY="3") for line in LINES),
    "a journal's text": "".join(record(MESSAGE=line, PRIORITY="3") for line in LINES),
    "a record in a record": record(log=record(level="ERROR", message="it failed", exc_info=TEXT), stream="stderr"),
    "a record under a runtime's time": "2025-11-20T10:00:00.123456789Z stderr F " + record(message="x", exc_info=TEXT),
}


@pytest.mark.parametrize("text", RECORDS.values(), ids=RECORDS)
def test_the_traceback_in_a_record_is_read(text: str) -> None:
    found = diagnose(number_lines(text))
    assert found.cause == "disk-full"
    assert "OSError: [Errno 28]" in found.evidence[-1].text


def test_a_longer_message_in_a_record_is_read_to_its_end() -> None:
    """All its lines have the record's number."""
    found = diagnose(number_lines("INFO a\n" + record(exc_info=TEXT.replace("OSError: [Errno 28] ", "OddError: x\n"))))
    assert found.cause == "disk-full"
    assert {line.number for line in found.evidence} == {2}


def cri(line: str, tag: str = "F", stream: str = "stderr") -> str:
    return f"2025-11-20T10:00:00.123456789Z {stream} {tag} {line}\n"


def test_a_line_that_the_runtime_cut_is_joined() -> None:
    """Under the number of its first part, though the other stream writes in between."""
    text = cri(LINES[0]) + cri(LINES[1]) + cri("OSError: [Errno 2", "P") + cri("hello", stream="stdout")
    text += cri("8] No space le", "P") + cri("ft on device")
    found = diagnose(number_lines(text))
    assert found.cause == "disk-full"
    assert [line.number for line in found.evidence] == [2, 3]
    assert found.evidence[-1].text == LINES[-1]


def docker(text: str) -> str:
    return json.dumps({"log": text, "stream": "stderr", "time": "2025-11-20T10:00:00Z"}, separators=(",", ":")) + "\n"


def test_a_line_that_docker_cut_is_joined() -> None:
    """At 16 KiB; a shorter one without its line end is whole: some forward it like that."""
    long = "x" * (16 << 10)
    assert [line.text for line in number_lines(docker(long) + docker("yz\n") + docker("a\n"))] == [f"{long}yz", "a"]
    assert [line.number for line in number_lines(docker("a") + docker("b"))] == [1, 2]


@pytest.mark.parametrize(
    "text", ['{"a": 1}', '{"message": 7}', '{"message": [300]}', "{}", '{"log": ""}', "{not json}"]
)
def test_what_holds_no_text_is_left_as_it_is(text: str) -> None:
    assert [line.text for line in number_lines(text)] == [text]


def test_what_never_ends_is_not_lost() -> None:
    """A log may stop between two parts of a line."""
    assert [line.text for line in number_lines(cri("half a li", "P"))] == ["half a li"]


LOGFMT = (
    'time=2026-02-03T10:00:01Z level=ERROR source=b.go:2 msg="no server" error="it ended: \\"odd\\"\\nmore of it"',
    ['no server: it ended: "odd"', "more of it"],
)


@pytest.mark.parametrize(
    "before", ["", "Feb 03 10:00:00 gpu1 odd[7]: ", "2026-02-03T10:00:00.1Z stderr F ", "odd-1  | "]
)
def test_a_record_of_pairs_is_its_message_and_its_error(before: str) -> None:
    line, told = LOGFMT
    lines = number_lines(f"{before}{line}")
    dressed = [undress(plain(one.text)) for one in lines]
    assert [one.words for one in dressed] == told
    assert (dressed[0].level, {one.number for one in lines}) == ("ERROR", {1})


@pytest.mark.parametrize(
    ("line", "level", "words"),
    [
        ("53.26.801.941 E CUDA error: odd", "ERROR", "CUDA error: odd"),
        ("0.00.360.389 W odd device", "WARNING", "odd device"),
        ("[Fri Feb  3 10:00:00 2026] NVRM: odd", "", "NVRM: odd"),
        ("[odd-router stderr] [77] words", "", "words"),
    ],
)
def test_what_stands_before_a_line(line: str, level: str, words: str) -> None:
    dressed = undress(plain(line))
    assert (dressed.level, dressed.words) == (level, words)


def test_a_line_that_only_looks_like_a_record_stays() -> None:
    line = 'vllm serve --note "level=high" level=odd'
    assert [one.text for one in number_lines(line)] == [line]
