"""A bundle comes over whole or not at all, and whatever was done to it on the way is told."""

from __future__ import annotations

import io
import json
import tarfile
from collections import namedtuple
from pathlib import Path

import pytest
from click.testing import CliRunner

from appliance.bundle.command import bundle as command
from appliance.bundle.install import install, verify
from appliance.bundle.manifest import BundleError, decode
from appliance.bundle.pack import create
from tests.tiny import write_checkpoint


@pytest.fixture
def model(tmp_path):
    return write_checkpoint(tmp_path / "source" / "tiny")


@pytest.fixture
def packed(model, tmp_path):
    create(model, tmp_path / "tiny.ingot")
    return tmp_path / "tiny.ingot"


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_model_comes_out_as_it_went_in(model, packed, home):
    manifest = verify(packed)
    assert {file.path for file in manifest.files} == set(content(model))
    target = install(packed, home.models)
    assert target == home.models / "tiny"
    assert content(target) == content(model)
    assert {path.stat().st_mode & 0o777 for path in target.iterdir()} == {0o644}


def test_progress_ends_at_the_total(model, packed, home, tmp_path):
    seen: list[tuple[int, int]] = []
    create(model, tmp_path / "again.ingot", lambda *at: seen.append(at))
    assert seen[-1][0] == seen[-1][1] > 0
    seen.clear()
    install(packed, home.models, lambda *at: seen.append(at))
    assert seen[-1][0] == seen[-1][1] == verify(packed).total_bytes


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_byte_that_changed_on_the_way_is_found_wherever_it_is(packed, home, share):
    raw = bytearray(packed.read_bytes())
    at = int(len(raw.rstrip(b"\0")) * share)
    raw[at] ^= 0x40
    packed.write_bytes(raw)
    with pytest.raises(BundleError, match=r"copy (it|the bundle) again|do not use it|not an Ingot bundle"):
        install(packed, home.models)
    assert list(home.models.iterdir()) == []


@pytest.mark.parametrize("kept", [0, 300, 5000, 0.5, 0.95])
def test_a_bundle_that_was_cut_off_leaves_nothing_behind(packed, home, kept):
    raw = packed.read_bytes()
    packed.write_bytes(raw[: int(kept * len(raw)) if isinstance(kept, float) else kept])
    with pytest.raises(BundleError):
        install(packed, home.models)
    assert list(home.models.iterdir()) == []


def rewritten(packed: Path, change) -> None:
    """Write the bundle again with members that `change` made of each (name, bytes)."""
    with tarfile.open(packed) as old:
        members = [(m.name, old.extractfile(m).read()) for m in old]
    with tarfile.open(packed, "w") as new:
        for name, data in change(members):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            new.addfile(info, io.BytesIO(data))


def test_a_file_that_the_manifest_does_not_name_is_refused(packed, home):
    rewritten(packed, lambda members: [*members, ("tiny/run.sh", b"#!/bin/sh")])
    with pytest.raises(BundleError, match=r"holds 'tiny/run.sh', which its manifest does not"):
        install(packed, home.models)


@pytest.mark.parametrize("path", ["../escaped", "/etc/passwd", "a/../../b", ""])
def test_a_manifest_that_names_a_file_outside_is_refused(packed, home, path):
    def change(members):
        manifest = json.loads(members[0][1])
        manifest["files"][0]["path"] = path
        return [(members[0][0], json.dumps(manifest).encode()), *members[1:]]

    rewritten(packed, change)
    with pytest.raises(BundleError, match="outside its own folder"):
        install(packed, home.models)


def test_a_bundle_of_another_format_says_to_update(packed):
    with pytest.raises(BundleError, match="format 9, and this Ingot reads 1; update Ingot"):
        decode(b'{"format":9,"name":"x","ingot":"9","created":0,"files":[]}')


def test_a_model_that_is_there_already_is_not_touched(packed, home):
    (home.models / "tiny").mkdir()
    with pytest.raises(BundleError, match="already in"):
        install(packed, home.models)
    assert list((home.models / "tiny").iterdir()) == []


def test_too_little_disk_is_told_before_anything_is_copied(packed, home, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(1, 1, 1))
    with pytest.raises(BundleError, match="make room"):
        install(packed, home.models)
    assert list(home.models.iterdir()) == []


def test_the_command_packs_verifies_and_installs_and_fails_with_one_line(model, tmp_path, home):
    run = CliRunner().invoke
    out = str(tmp_path / "m.ingot")
    assert run(command, ["create", "--model", str(model), "--out", out]).exit_code == 0
    assert json.loads(run(command, ["verify", out, "--json"]).output)["name"] == "tiny"
    assert run(command, ["install", out]).exit_code == 0
    again = run(command, ["install", out])
    assert again.exit_code == 1
    assert "already in" in again.output
    assert "Traceback" not in again.output
    empty = run(command, ["create", "--model", str(tmp_path / "nowhere"), "--out", out + "2"])
    assert empty.exit_code == 1
    assert "is not a folder" in empty.output
