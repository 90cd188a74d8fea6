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
    ("imported", "used"),
    [
        ("from ours.sizes import SPLIT", "SPLIT"),
        ("from ours.sizes import SPLIT as parts", "parts"),
        ("from .sizes import SPLIT", "SPLIT"),
        ("from ours import sizes", "sizes.SPLIT"),
        ("import ours.sizes", "ours.sizes.SPLIT"),
        ("from ours.again import SPLIT", "SPLIT"),
    ],
)
def test_a_constant_that_a_kernel_imports_belongs_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imported, used
):
    """Its value is part of the kernel's key: with another one the cast would miss at the first launch."""
    room = tmp_path / "ours"
    (room / "cast").mkdir(parents=True)
    monkeypatch.setattr(environment, "__file__", str(room / "cast" / "environment.py"))
    (room / "__init__.py").touch()
    (room / "sizes.py").write_text("SPLIT = 256\n")
    (room / "again.py").write_text("from ours.sizes import SPLIT\n")
    (room / "host.py").write_text("WORKERS = 2\n")
    (room / "op.py").write_text(
        f"from ours.host import WORKERS\n{imported}\n\n@triton.jit\ndef kernel():\n    return {used}\n"
    )
    before = environment.kernel_source()
    (room / "host.py").write_text("WORKERS = 4\n")
    assert environment.kernel_source() == before, "no kernel uses it"
    (room / "sizes.py").write_text("SPLIT = 128\n")
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
