"""`ingot verify` without a GPU: hashes and keys; and what it says when they do not fit."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from appliance.cast import bystanders, proving, verify
from appliance.cast.proving import prove
from appliance.hardware import Gpu
from kernels.cast import check, manifest
from kernels.cast.words import Bystanders, ForwardProof
from tests.cast.conftest import Workshop


def test_a_whole_cast(workshop: Workshop, casts: dict[str, Path]):
    """One line for each op, then the verdict."""
    done = workshop.run("appliance.cast", "verify", INGOT_CAST=str(casts["sm_90"]))
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    ops = {variant.op for variant in check.read(casts["sm_90"]).variants}
    assert {line.split()[0] for line in lines[:-1]} == ops
    assert lines[-1].startswith(f"COMPLETE: {casts['sm_90']} (sm_90)")


def test_what_does_not_fit_is_reported(workshop: Workshop, casts: dict[str, Path], tmp_path: Path):
    """A file with one bit changed, by name; then a variant that this Ingot no longer declares, and one whose kernel is
    there under another key, as after a change of its source."""
    cast = Path(shutil.copytree(casts["sm_90"], tmp_path / "cast"))
    kernel = next(cast.rglob("*.cubin"))
    content = kernel.read_bytes()
    kernel.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = workshop.run("appliance.cast", "verify", "--cast", str(cast))
    assert done.returncode == 1
    problem, verdict = done.stdout.splitlines()
    assert str(kernel.relative_to(cast)) in problem
    assert verdict.startswith(f"NOT PROVEN: {cast} (sm_90)")

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
    assert len(problems) == 2
    assert any(problem.startswith("nothing ") for problem in problems)
    assert any(second.name in problem for problem in problems)


def test_a_folder_without_a_cast_is_refused(workshop: Workshop, tmp_path: Path):
    done = workshop.run("appliance.cast", "verify", "--cast", str(tmp_path))
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr
    assert "manifest.json" in done.stderr


def verdict(cast: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
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


def test_what_is_written_into_the_cast_meanwhile_is_reported(
    casts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cast = Path(shutil.copytree(casts["sm_90"], tmp_path / "cast"))

    def meanwhile(*_: object) -> Iterator[list[str]]:
        (cast / "triton" / "new").touch()
        yield []

    monkeypatch.setattr(verify, "prove", meanwhile)
    (problem,) = verdict(cast, monkeypatch)["problems"]
    assert f"{cast}/triton/new" in problem


def test_what_the_process_compiles_into_any_cache_is_reported(
    casts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A stand-in for that process writes into each: none of them is the user's."""
    said = msgspec.json.encode(Bystanders()).decode()
    stand_in = tmp_path / "python"
    writes = "\n".join(f'echo x > "${name}/{name}"' for name in bystanders.CACHES)
    stand_in.write_text(f"#!/bin/sh\n{writes}\necho '{said}'\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    (problems,) = prove(tmp_path, check.read(casts["sm_90"]), None)
    assert isinstance(problems, list)
    assert {Path(problem.split()[0]).name for problem in problems} == {*bystanders.CACHES}


def test_a_file_that_goes_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It was listed, and is gone when it is looked at."""
    (tmp_path / "stays").touch()
    monkeypatch.setattr(os, "walk", lambda folder: [(str(folder), [], ["stays", "goes"])])
    assert list(bystanders.snapshot(tmp_path)) == [str(tmp_path / "stays")]


def test_the_manifest_is_read_once(casts: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    """With a GPU as well, where a model runs from the cast: the engine and the verdict see the same manifest."""
    read: list[Path] = []
    ran: list[list[str]] = []
    forward = ForwardProof(tokens=1, error=0.0, tolerance=1.0, backends={"rms_norm": "triton"})

    def read_once(folder: Path) -> manifest.Manifest:
        read.append(folder)
        return original(folder)

    def run(arguments: list[str], gpu: Gpu | None) -> Iterator[ForwardProof | list[str]]:
        ran.append(arguments)
        yield forward
        yield []

    original = check.read
    card = Gpu(
        uuid="GPU-1", index=0, name="Card", memory_bytes=1 << 34, memory_free_bytes=1 << 34, compute_capability=(9, 0)
    )
    monkeypatch.setattr(check, "read", read_once)
    monkeypatch.setattr(proving, "_run", run)
    monkeypatch.setattr(verify, "_gpu", lambda _: card)
    assert verdict(casts["sm_90"], monkeypatch)["gpu"] == str(card)
    assert [arguments[0] for arguments in ran] == ["kernels.cast.prove", "appliance.engine.proof"]
    assert read == [casts["sm_90"]]
