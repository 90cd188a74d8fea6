"""Oracle files: read as they were written, and refused by field where they are damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from appliance.accept.oracle_file import (
    Entry,
    Oracle,
    OracleError,
    RecordedModel,
    RecordedNeedle,
    Recorder,
    read_oracle,
    write_oracle,
)

MODEL = RecordedModel(name="m", dtype="float32", tokenizer_text="ab", tokenizer_ids=[1, 2])
ENTRY = Entry(
    id="one", prompt=[1, 2], tokens=[3], logprobs=[None, -0.5, -1.5], top=[[], [(2, -0.5)], [(3, -1.5), (4, -2.0)]]
)
NEEDLE = RecordedNeedle(id="needle", depth=0.5, prompt=[1, 2], expected="12345", answer=" 12345.", found=True)
ORACLE = Oracle(
    recorded="2026-11-26T12:00:00Z", recorder=Recorder(program="p", engine="e"), model=MODEL, top=2, entries=[ENTRY],
    needles=[NEEDLE],
)  # fmt: skip


@pytest.mark.parametrize("name", ["oracle.json", "oracle.json.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str):
    path = tmp_path / name
    write_oracle(path, ORACLE)
    assert path.read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")
    assert read_oracle(path).oracle == ORACLE
    before = path.read_bytes()
    write_oracle(path, ORACLE)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("where", "value", "field"),
    [
        (("format",), "other", "format"),
        (("version",), 2, "version"),
        (("entries",), [], None),
        (("entries", 0, "logprobs"), [None, -0.5], "entries[0].logprobs"),
        (("entries", 0, "logprobs", 1), None, "entries[0]"),
        (("entries", 0, "logprobs", 1), 0.5, "entries[0]"),
        (("entries", 0, "top"), [[]], "entries[0].top"),
        (("entries", 0, "prompt"), [], "entries[0]"),
        (("entries", 0, "prompt", 0), -1, "entries[0]"),
        (("entries", 0, "prompt", 0), "x", "entries[0].prompt"),
        (("needles", 0, "depth"), 1.5, "needles[0]"),
        (("needles", 0, "id"), "one", "needles[0].id"),
        (("model",), {}, "model"),
    ],
)
def test_a_damaged_file_is_refused_by_field(tmp_path: Path, where: tuple[Any, ...], value: Any, field: str | None):
    path = tmp_path / "oracle.json"
    write_oracle(path, ORACLE)
    content: Any = json.loads(path.read_text())
    parent = content
    for part in where[:-1]:
        parent = parent[part]
    parent[where[-1]] = value
    if field is None:  # needles alone are an oracle, too
        path.write_text(json.dumps(content))
        assert read_oracle(path).oracle.entries == []
        content["needles"], field = [], "entries"
    path.write_text(json.dumps(content))
    with pytest.raises(OracleError) as raised:
        read_oracle(path)
    assert field.split(".")[-1].partition("[")[0] in str(raised.value)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"\x1f\x8b\x08cut", gzip.compress(b"{}")[:-6]],
    ids=["empty", "half an object", "a list", "no gzip", "half a gzip"],
)
def test_what_is_no_oracle_is_refused(tmp_path: Path, raw: bytes):
    path = tmp_path / "oracle.json"
    path.write_bytes(raw)
    with pytest.raises(OracleError):
        read_oracle(path)
