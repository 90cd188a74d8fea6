"""Files of a model that cannot be read, or that are not of one model; and errors that no check foresaw."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.checkpoint.import_record import write_record
from appliance.home import Home
from appliance.preflight import PreflightContext, Report, run
from appliance.preflight.registry import CHECKS, MACHINE, MEMORY, MODEL, Check
from appliance.profile.document import apply_patch
from appliance.protocol import Finding, Severity
from appliance.selftest.answers import MODEL as BUNDLED
from tests.preflight.machines import CHAT, recorded
from tests.tiny import write_checkpoint

WORDS = json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}})
READ = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
        "model.safetensors.index.json", "model.safetensors")  # fmt: skip


def look(home: Home, changes: dict[str, Any] | None = None, *, only: str = "") -> Report:
    document = apply_patch(CHAT, changes or {})
    checks = [check for check in CHECKS if check.id == only] if only else CHECKS
    return run(PreflightContext(home=home, document=document, environ={}, inventory=recorded("none")), checks)


def bundled(home: Home, **config: Any) -> Path:
    """A model whose files are all of one source."""
    folder = Path(shutil.copytree(BUNDLED, home.models / "tiny"))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large"])
@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("engine", ["native", "vllm"])
def test_no_file_of_a_model_is_waited_for(home: Home, name: str, kind: str, engine: str) -> None:
    """A pipe that nobody writes into, a device without end, a folder, a file of terabytes: each is named as what cannot
    be read, once, and at once."""
    path = write_checkpoint(home.models / "tiny") / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 4 << 40)
    report = look(home, {"engine": engine, "model.digest": f"sha256:{'0' * 64}"})
    findings = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    if kind == "device":
        assert [finding.id for finding in findings] == ["model-outside"]
    else:
        assert len([f for f in findings if name in f.message]) == 1, findings


def test_an_error_that_no_check_foresaw_is_reported_of_its_own_file(home: Home) -> None:
    """With the file, the check and what the number of the error means; only a model's check blames the model's path,
    and what only warns does not keep a launch from being tried."""

    def fails(number: int, file: str) -> Callable[[Any], Iterator[Finding]]:
        def run(_subject: Any) -> Iterator[Finding]:
            yield from ()
            raise OSError(number, os.strerror(number), file)

        return run

    checks = (
        Check("clock", "Clock is not behind", fails(errno.EACCES, "/etc/adjtime"), MACHINE),
        Check("weights", "Weights are complete", fails(errno.EIO, "x.safetensors"), MODEL),
        Check("memory", "Memory is enough", fails(errno.EMFILE, "/proc/meminfo"), MEMORY),
    )
    context = PreflightContext(home=home, document=CHAT, environ={}, inventory=recorded("none"))
    clock, weights, memory = run(context, checks).findings
    assert (clock.id, clock.severity, clock.field) == ("clock-unreadable", Severity.WARNING, None)
    assert "Clock is not behind" in clock.message
    assert "/etc/adjtime" in clock.message
    assert (weights.severity, weights.field) == (Severity.ERROR, "model.path")
    assert weights.fix.look == "sudo dmesg"
    assert (memory.severity, memory.field, memory.fix.look) == (Severity.ERROR, None, "ulimit -n")


def test_one_fault_of_a_file_that_two_checks_read_is_reported_once(home: Home) -> None:
    (write_checkpoint(home.models / "tiny") / "tokenizer_config.json").write_text("{")
    report = look(home)
    assert [f.id for f in report.findings if f.severity is Severity.ERROR] == ["tokenizer-config-unreadable"]
    outcomes = {check.id: check.outcome for check in report.checks}
    assert (outcomes["tokenizer"], outcomes["chat-template"]) == ("error", "skipped")


QWEN = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


@pytest.mark.parametrize(
    ("files", "config", "said"),
    [
        ({"tokenizer.json": WORDS}, {}, "3,072"),
        ({"tokenizer_config.json": {"eos_token": "<|im_end|>"}}, {}, "'<|im_end|>'"),
        ({"chat_template.jinja": QWEN}, {}, "<|im_start|>, <|im_end|>"),
        ({}, {"vocab_size": 3200, "eos_token_id": [2, 3199]}, "3199"),
    ],
)
def test_a_tokenizer_of_another_model_is_a_warning(
    home: Home, files: dict[str, Any], config: dict[str, Any], said: str
) -> None:
    """The model has a number for each of its tokens, so that it would start, and answer nonsense."""
    folder = bundled(home, **config)
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    [finding] = [f for f in look(home, only="tokenizer").findings if f.id == "tokenizer-of-another-model"]
    assert finding.severity is Severity.WARNING
    assert said in " ".join((finding.message, *finding.evidence))
    assert "one source" in finding.fix.text


def encoded(home: Home, **files: str) -> Path:
    """A model without a template, of a family that has an encoder in two revisions."""
    folder = bundled(home, model_type="deepseek_v4")
    path = folder / "tokenizer_config.json"
    given = json.loads(path.read_text())
    del given["chat_template"]
    path.write_text(json.dumps(given))
    (folder / "encoding").mkdir()
    for name, text in files.items():
        (folder / "encoding" / f"{name}.py").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "changes", "found"),
    [
        ({}, {}, ["chat-encoding-assumed"]),
        ({"encoding_dsv4": "import os"}, {}, ["chat-encoding-assumed"]),
        ({"encoding_dsv4": "REASONING_EFFORT_MAX = ''"}, {}, []),
        ({}, {"chat-encoding": "deepseek-v4-april"}, []),
        ({}, {"engine": "vllm"}, []),
    ],
)
def test_a_model_with_an_encoder_needs_no_template(
    home: Home, files: dict[str, str], changes: dict[str, Any], found: list[str]
) -> None:
    """But something should say which revision is the model's; vLLM chooses for itself."""
    encoded(home, **files)
    report = look(home, changes, only="chat-template")
    assert [finding.id for finding in report.findings] == found
    for finding in report.findings:
        assert finding.severity is Severity.WARNING
        assert finding.value == "deepseek-v4-0731"
        assert [look(home, patch, only="chat-template").findings for patch in finding.fix.options] == [[], []]


def test_an_encoder_whose_tokens_the_tokenizer_does_not_know_is_a_warning(home: Home) -> None:
    folder = bundled(home)
    report = look(home, {"chat-encoding": "deepseek-v3.2"}, only="tokenizer")
    [finding] = [f for f in report.findings if f.id == "tokenizer-of-another-model"]
    assert finding.evidence[0] == str(folder / "tokenizer.json")


def test_a_tokenizer_that_is_the_models_is_not_suspected(home: Home) -> None:
    """Embeddings that are padded; marks of a template of which the tokenizer knows some, as of TinyLlama's."""
    folder = bundled(home, vocab_size=3200)
    assert look(home, only="tokenizer").findings == []
    (folder / "chat_template.jinja").write_text("<|nobody|>{{ messages[0].content }}<|end|>")
    assert look(home, only="tokenizer").findings == []


def test_an_imported_models_changed_file_comes_back_from_its_drive(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real shell, and then nothing is found any more."""
    monkeypatch.setenv("INGOT_MEDIA", str(tmp_path / "media"))
    folder = home.models / "tiny"
    write_checkpoint(folder)
    shutil.copytree(folder, tmp_path / "media" / "STICK" / "tiny")
    write_record(
        folder, {file.name: "" for file in folder.iterdir()}, source="STICK/tiny", name="tiny", signed_by="", author=""
    )
    (folder / "config.json").write_text('{"cut": ')
    (finding,) = (one for one in look(home, {"model.path": "tiny"}).findings if one.severity is Severity.ERROR)
    assert finding.id == "config-unreadable"
    subprocess.run(["sh", "-c", finding.fix.command], check=True)
    errors = [one.id for one in look(home, {"model.path": "tiny"}).findings if one.severity is Severity.ERROR]
    assert "config-unreadable" not in errors
