"""A cast belongs to the kernels that it was made from, and settings mean what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cast import environment
from kernels.cast.setting import cast_folder, may_compile
from tests.cast.conftest import Workshop
from tests.cast.test_preflight import look, only


def test_a_cast_of_other_kernels_is_refused_before_the_weights(
    workshop: Workshop, casts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    """As after an upgrade: the variants have the same names, and other keys."""
    monkeypatch.setattr(environment, "kernel_source", lambda: "other")
    finding = only(look(workshop, {"INGOT_CAST": str(casts["sm_90"])}))
    assert finding.id == "cast-source"
    assert "made from the kernels of another Ingot" in finding.message


def test_the_digest_is_of_the_files_that_hold_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "cast").mkdir()
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "cast" / "environment.py"))
    (tmp_path / "op.py").write_text("@triton.jit\ndef kernel(): pass\n")
    before = environment.kernel_source()
    (tmp_path / "words.py").write_text("nothing that is compiled\n")
    assert environment.kernel_source() == before
    (tmp_path / "op.py").write_text("@triton.jit\ndef kernel(): return\n")
    assert environment.kernel_source() != before


@pytest.mark.parametrize(
    ("value", "compiles"), [("1", True), ("true", True), ("0", False), ("no", False), ("false", False), ("", False)]
)
def test_only_a_plain_yes_unseals(value: str, compiles: bool):
    environ = {"INGOT_JIT": value, "INGOT_CAST": "/somewhere"}
    assert may_compile(environ) is compiles
    assert (cast_folder(environ) is None) is compiles


def test_the_folder_may_be_named_from_here(workshop: Workshop, tmp_path: Path):
    """`--out` is where the person who casts stands, not where the compiler does."""
    command = [sys.executable, "-m", *workshop.cast_command("sm_90", Path("casts/here"))]
    done = subprocess.run(command, cwd=tmp_path, env=workshop.environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "casts" / "here" / "manifest.json").exists()
