"""`ingot check --fix`: what a change of the profile fixes is fixed, nothing else is touched, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.home import Home
from appliance.preflight import PreflightContext, Surroundings
from appliance.preflight.file_edit import edit
from appliance.preflight.fixing import apply_fixes
from appliance.preflight.saving import NotSavedError, save_active
from appliance.profile.active import ActiveProfile, write_active
from appliance.profile.document import apply_patch, parse, write
from tests.preflight.machines import ENVIRON, ids, install, recorded, sane, vllm
from tests.tiny import write_checkpoint

WRITTEN = """\
# The chat of the second floor.
name: chat            # do not rename
model: {path: tinny}  # see the wiki
max_model_len: 4096

backends:
  # somebody tried this
  attention: flashinfer
  moe: auto
vllm:
  environment:
    NCCL_DEBUG: INFO
"""


@pytest.fixture
def file(home: Home, tmp_path: Path) -> Path:
    write_checkpoint(home.models / "tiny")
    path = tmp_path / "chat.yaml"
    path.write_text(WRITTEN)
    return path


def ingot(home: Home, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "appliance.cli", *arguments],
        env=os.environ | {"INGOT_HOME": str(home.root)} | environ,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# A file
# --------------------------------------------------------------------------------------------------------------------


def test_a_file_is_fixed_in_place_and_kept_as_it_was(home: Home, file: Path) -> None:
    """Errors, round after round: the folder's name hid the context, which hid nothing. Comments stay, warnings too."""
    ran = ingot(home, "check", "--profile", str(file), "--fix", "--port", "0")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "+ model.path: tiny" in ran.stdout
    text = file.read_text()
    assert "model: {path: tiny}  # see the wiki" in text
    assert "max_model_len: 512" in text
    assert "# The chat of the second floor." in text
    assert "NCCL_DEBUG" in text
    assert (file.parent / "chat.yaml.before-fix").read_text() == WRITTEN
    assert parse(text) == {
        "name": "chat", "model": {"path": "tiny"}, "max-model-len": 512, "backends": {"moe": "auto"},
        "vllm": {"environment": {"NCCL_DEBUG": "INFO"}},
    }  # fmt: skip


def test_warnings_are_fixed_when_asked_and_earlier_copies_are_kept(home: Home, file: Path) -> None:
    ingot(home, "check", "--profile", str(file), "--fix", "--port", "0")
    ran = ingot(home, "check", "--profile", str(file), "--fix=all", "--json", "--port", "0")
    data = json.loads(ran.stdout)
    assert [one["id"] for one in data["fixed"]["findings"]] == ["setting-unused"]
    assert data["findings"] == []
    assert "vllm" not in parse(file.read_text())
    assert (file.parent / "chat.yaml.before-fix").read_text() == WRITTEN
    assert "NCCL_DEBUG" in (file.parent / "chat.yaml.before-fix-2").read_text()


def test_a_file_without_anything_to_fix_is_not_touched(home: Home, file: Path) -> None:
    file.write_text("name: chat\nmodel: {path: tiny}\n")
    before = file.stat().st_mtime_ns
    ran = ingot(home, "check", "--profile", str(file), "--fix", "--port", "0")
    assert "fixed  " not in ran.stdout
    assert file.stat().st_mtime_ns == before
    assert list(file.parent.glob("*.before-fix*")) == []


def test_what_a_person_has_to_decide_is_left(home: Home, file: Path) -> None:
    """That a folder which is not the expected model is to be run is nobody's to decide but theirs."""
    file.write_text(f"name: chat\nmodel: {{path: tiny, digest: 'sha256:{'0' * 64}'}}\n")
    ran = ingot(home, "check", "--profile", str(file), "--fix=all", "--port", "0")
    assert ran.returncode == 1
    assert "0" * 64 in file.read_text()


def test_a_file_behind_a_link_and_one_that_cannot_be_written(home: Home, file: Path, tmp_path: Path) -> None:
    """The link stays one. A folder that takes no copy leaves the file as it was."""
    link = tmp_path / "link.yaml"
    link.symlink_to(file)
    ingot(home, "check", "--profile", str(link), "--fix", "--port", "0")
    assert link.is_symlink()
    assert "path: tiny}" in file.read_text()
    if os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.mkdir()
        (locked / "chat.yaml").write_text(WRITTEN)
        locked.chmod(0o500)
        ran = ingot(home, "check", "--profile", str(locked / "chat.yaml"), "--fix", "--port", "0")
        assert ran.returncode == 1
        assert (locked / "chat.yaml").read_text() == WRITTEN


# --------------------------------------------------------------------------------------------------------------------
# A stored profile
# --------------------------------------------------------------------------------------------------------------------


def test_the_active_profile_gets_another_revision(home: Home, file: Path) -> None:
    """Through the store; what runs is not touched, and the way to run the new one is said. Whoever has saved a later
    revision meanwhile keeps it."""
    file.write_text("name: chat\nmodel: {path: tiny}\nmax-model-len: 4096\n")
    assert ingot(home, "profile", "import", "--yes", str(file)).returncode == 0
    document = parse(file.read_text())
    active = ActiveProfile(launch=None, revision="r1", document=document)
    write_active(home, active)
    ran = ingot(home, "check", "--fix", "--port", "0")
    assert "Saved as chat r2. To run it: ingot profile activate chat" in ran.stdout, ran.stdout + ran.stderr
    assert ran.returncode == 0
    shown = json.loads(ingot(home, "profile", "show", "chat", "--json").stdout)
    assert shown["revision"]["document"]["max-model-len"] == 512
    assert "ingot check --fix" in shown["revision"]["note"]
    assert json.loads(json.dumps(active.document))["max-model-len"] == 4096
    again = ingot(home, "check", "--fix", "--port", "0")  # the active one is still r1, and r2 says the same
    assert "chat r2" in again.stdout
    file.write_text("name: chat\nmodel: {path: tiny}\nmax-model-len: 100\n")
    ingot(home, "profile", "import", "--yes", str(file))
    stale = ingot(home, "check", "--fix", "--port", "0")
    assert stale.returncode == 1
    assert "r3" in stale.stderr


def test_without_an_active_profile_there_is_nothing_to_save(home: Home) -> None:
    with pytest.raises(NotSavedError, match="No profile is active"):
        save_active(home, {}, "")


# --------------------------------------------------------------------------------------------------------------------
# Rounds
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["none", "rtx-pro-6000", "h200-x8", "a100-mig", "dgx-spark", "old-driver"])
@pytest.mark.parametrize(
    "changes",
    [
        {"max-model-len": 99999},
        {"max-model-len": 99999, "tensor-parallel-size": 64, "kv-cache-dtype": "fp8_e5m2", "backends.moe": "triton"},
        {"engine": "vllm", "tensor-parallel-size": 3, "max-model-len": 4000, "vllm.extra-args.quantization": "awq"},
        {"engine": "vllm", "device": "GPU-12345678-1234-1234-1234-123456789abc"},
        {"model.path": "tinny", "backends.attention": "tritn", "max-num-seq": 9},
    ],
)
def test_every_applied_fix_takes_its_finding_away(
    home: Home, tmp_path: Path, machine: str, changes: dict[str, Any]
) -> None:
    """Over recorded machines: what was fixed is not found again, and no two fixes chase each other for ever."""
    write_checkpoint(home.models / "tiny", dtype="bfloat16", head_dim=64)
    environ = {**ENVIRON, "INGOT_VLLM": str(vllm(tmp_path / "vllm"))}
    context = PreflightContext(
        home=home,
        document=apply_patch({"name": "chat", "model": {"path": "tiny"}}, changes),
        environ=environ,
        inventory=recorded(machine),
        surroundings=sane(tmp_path / "root", install(tmp_path / "native")),
    )
    fixed = apply_fixes(context, "all")
    assert fixed.applied
    left = {(finding.id, finding.field) for finding in fixed.report.findings}
    for one in fixed.applied:
        assert (one.finding.id, one.finding.field) not in left, one.finding
    assert not [f for f in fixed.report.findings if f.severity == "error" and f.fix and f.fix.patch]


def test_two_fixes_that_undo_each_other_end(home: Home, tmp_path: Path) -> None:
    """A model that neither engine runs is offered neither for ever."""
    write_checkpoint(home.models / "tiny", head_dim=64, architectures=["NobodysForCausalLM"])
    environ = {**ENVIRON, "INGOT_VLLM": str(vllm(tmp_path / "vllm"))}
    context = PreflightContext(
        home=home, document={"name": "chat", "model": {"path": "tiny"}}, environ=environ, inventory=recorded("none"),
        surroundings=Surroundings(root=sane(tmp_path / "root").root),
    )  # fmt: skip
    assert "architecture-unsupported" in ids(apply_fixes(context, "all").report)


# --------------------------------------------------------------------------------------------------------------------
# Text
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "patch", "expected"),
    [
        ("a: 1 # x\nb: 2\n", {"a": 3}, "a: 3 # x\nb: 2\n"),
        ("a: 1\nb: 2", {"b": None}, "a: 1\n"),
        ("a: 1\n", {"s.k": "v"}, "a: 1\ns:\n  k: v\n"),
        ("s:\n  k: 1 # x\n\n# tail\nz: 0\n", {"s.m": True}, "s:\n  k: 1 # x\n  m: true\n\n# tail\nz: 0\n"),
        ("s: {k: 1, l: 2} # x\n", {"s.k": None}, "s: {l: 2} # x\n"),
        ("s: {k: 1} # x\nz: 0\n", {"s.k": None}, "z: 0\n"),
        ("s: {k: 1} # x\n", {"s.l": "off"}, "s: {k: 1, l: 'off'} # x\n"),
        ("model: Qwen # x\n", {"model.path": "Qwen3"}, "model:\n  path: Qwen3\n"),
    ],
)
def test_a_change_leaves_the_rest_as_it_was_written(text: str, patch: dict[str, Any], expected: str) -> None:
    """The last: a spelling that has no place for the change is written anew."""
    edited = edit(text, patch)
    assert parse(edited.text) == apply_patch(parse(text), patch)
    if edited.kept_comments:
        assert edited.text == expected


NAMES = st.sampled_from(["a", "b", "max-num-seqs", "name", "s"])
VALUES = st.one_of(st.integers(-5, 5), st.booleans(), st.text(max_size=12), st.floats(allow_nan=False, width=16,
                   allow_infinity=False))  # fmt: skip
DOCUMENTS = st.dictionaries(
    NAMES, st.one_of(VALUES, st.dictionaries(NAMES, VALUES, min_size=1, max_size=3)), min_size=1, max_size=4
)
PATCHES = st.dictionaries(
    st.one_of(NAMES, st.tuples(NAMES, NAMES).map(".".join)), st.one_of(st.none(), VALUES), min_size=1, max_size=3
)


@given(document=DOCUMENTS, patch=PATCHES, comment=st.booleans())
def test_whatever_the_text_the_patch_is_what_comes_out(
    document: dict[str, Any], patch: dict[str, Any], comment: bool
) -> None:
    """Never anything else, in whatever style; at worst without the comments, and then that is said."""
    text = write(document)
    if comment:
        text = "# first\n" + text + "# last\n"
    edited = edit(text, patch)
    assert parse(edited.text or "{}") == apply_patch(parse(text), patch)
    assert edited.kept_comments or comment or "#" in text
