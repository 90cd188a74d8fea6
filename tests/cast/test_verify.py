"""`ingot verify` without a GPU: hashes and keys; and what it says when they do not fit."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from appliance.cast import bystanders, verify
from appliance.cast.proving import prove
from kernels.cast import check, manifest
from kernels.cast.words import Bystanders
from tests.cast.conftest import Workshop


def test_a_whole_cast(workshop: Workshop, casts: dict[str, Path]):
    """One line for each op, then the verdict."""
    done = workshop.run("appliance.cast", "verify", INGOT_CAST=str(casts["sm_90"]))
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    ops = {variant.op for variant in check.read(casts["sm_90"]).variants}
    assert {line.split()[0] for line in lines[:-1]} == ops
    assert all(" kernels found" in line for line in lines[:-1])
    assert lines[-1].startswith(f"WHOLE: {casts['sm_90']} for sm_90 has all ")


def test_what_does_not_fit_is_told(workshop: Workshop, casts: dict[str, Path], tmp_path: Path):
    """A file with one bit changed, by name; then a variant that this Ingot no longer declares, and one whose kernel is
    there under another key, as after a change of its source."""
    cast = Path(shutil.copytree(casts["sm_90"], tmp_path / "cast"))
    kernel = next(cast.rglob("*.cubin"))
    content = kernel.read_bytes()
    kernel.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = workshop.run("appliance.cast", "verify", "--cast", str(cast))
    assert done.returncode == 1
    assert f"{kernel.relative_to(cast)} has another content (SHA-256)." in done.stdout
    assert done.stdout.splitlines()[-1] == f"NOT PROVEN: {cast} for sm_90."

    kernel.write_bytes(content)
    found = check.read(cast)
    first, second, *others = found.variants
    key, *stubs = second.keys
    (cast / "triton" / key).rename(cast / "triton" / "OTHER")
    files = tuple(msgspec.structs.replace(file, path=file.path.replace(key, "OTHER")) for file in found.files)
    moved = msgspec.structs.replace(second, keys=("OTHER", *stubs))
    changed = (msgspec.structs.replace(first, name="nothing"), moved, *others)
    manifest.write(msgspec.structs.replace(found, variants=changed, files=files), cast)
    done = workshop.run("appliance.cast", "verify", "--cast", str(cast), "--json")
    assert done.returncode == 1
    problems = [problem for op in json.loads(done.stdout)["ops"] for problem in op.get("problems", ())]
    assert "nothing is in the cast, and is no variant of this Ingot" in problems
    assert any(second.name in problem and "compiled from other source" in problem for problem in problems)


def test_an_unfinished_cast_is_told_with_the_command_that_finishes_it(workshop: Workshop, tmp_path: Path):
    done = workshop.run("appliance.cast", "verify", "--cast", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == f"There is no cast in {tmp_path}: it has no manifest.json. Name a cast's folder.\n"


def verdict(cast: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return json.loads(CliRunner().invoke(verify.verify, ["--cast", str(cast), "--json"]).output)


def test_what_others_write_meanwhile_is_theirs(casts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In their own caches. Nor does it matter that this user has no name, as in a container."""

    def meanwhile(*_: object) -> Iterator[list[str]]:
        for name in (".triton/cache/KEY/other.cubin", ".nv/ComputeCache/index"):
            (tmp_path / name).parent.mkdir(parents=True)
            (tmp_path / name).touch()
        yield []

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(getpass, "getuser", nameless)
    monkeypatch.setattr(verify, "prove", meanwhile)
    assert verdict(casts["sm_90"], monkeypatch)["problems"] == []


def test_what_is_written_into_the_cast_meanwhile_is_told(
    casts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cast = Path(shutil.copytree(casts["sm_90"], tmp_path / "cast"))

    def meanwhile(*_: object) -> Iterator[list[str]]:
        (cast / "triton" / "new").touch()
        yield []

    monkeypatch.setattr(verify, "prove", meanwhile)
    assert verdict(cast, monkeypatch)["problems"] == [f"{cast}/triton/new was changed meanwhile."]


def test_what_the_process_compiles_into_any_cache_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stand-in for that process writes into each: none of them is the user's."""
    said = msgspec.json.encode(Bystanders()).decode()
    stand_in = tmp_path / "python"
    writes = "\n".join(f'echo x > "${name}/{name}"' for name in bystanders.CACHES)
    stand_in.write_text(f"#!/bin/sh\n{writes}\necho '{said}'\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    (problems,) = prove(tmp_path, None)
    assert isinstance(problems, list)
    assert all(problem.endswith(" was written: something was compiled.") for problem in problems)
    assert {Path(problem.split()[0]).name for problem in problems} == {*bystanders.CACHES}


def test_a_file_that_goes_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It was listed, and is gone when it is looked at."""
    (tmp_path / "stays").touch()
    monkeypatch.setattr(os, "walk", lambda folder: [(str(folder), [], ["stays", "goes"])])
    assert list(bystanders.snapshot(tmp_path)) == [str(tmp_path / "stays")]
