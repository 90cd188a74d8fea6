"""A sealed process launches what is cast, says what is not, and starts no program."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from kernels.cast import manifest
from tests.cast.conftest import ARCHITECTURES, Workshop

NOTHING = {"compiled": 0, "spawned": [], "compiler": "/bin/false"}


def copied(cast: Path, to: Path) -> Path:
    return Path(shutil.copytree(cast, to / "copy"))


def read(cast: Path) -> manifest.Manifest:
    return manifest.parse((cast / manifest.NAME).read_bytes(), cast)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_op_finds_its_kernels_by_its_public_function(workshop: Workshop, casts: dict[str, Path], architecture):
    """In a second process, with real tensors: all variants of the cast are launched, none is compiled, and no program
    is started, be it ptxas or ldconfig."""
    found = workshop.sealed(casts[architecture])
    assert set(found["cast"]) <= set(found["launched"])
    assert all("Cast it: ingot cast" in text for text in found["missing"])
    assert len(found["cast"]) > 10
    assert found.items() >= NOTHING.items()


def test_a_cast_may_be_moved_and_read_only(workshop: Workshop, casts, tmp_path: Path):
    moved = copied(casts["sm_90"], tmp_path)
    places = [moved, *moved.rglob("*")]
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in places}
    for path in places:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        found = workshop.sealed(moved)
    finally:
        for path in places:
            path.chmod(0o755)
    assert set(found["cast"]) <= set(found["launched"])
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [moved, *moved.rglob("*")]} == before


def test_what_is_not_cast_is_named(workshop: Workshop, casts):
    """Op, variant, architecture and the command that would cast it; and where no cast could help, why."""
    found = workshop.sealed(casts["sm_90"], "misaligned", "too-many", "undeclared", "other-model")
    assert found.items() >= NOTHING.items()
    caught = found["caught"]
    assert all(text.startswith("rms_norm needs the kernel rms_norm_kernel[*bf16,") for text in caught.values())
    assert all(" on sm_90, " in text for text in caught.values())
    command = f"Cast it: ingot cast --arch sm_90 --out {casts['sm_90']}"
    assert "x_ptr" in caught["misaligned"]
    assert "rows is 2147483648" in caught["too-many"]
    assert command not in caught["misaligned"] + caught["too-many"]
    assert caught["undeclared"].endswith(command)
    ids = workshop.sealed(casts["sm_90"], "unaligned-ids")["caught"]["unaligned-ids"]
    assert ids.startswith("embedding needs the kernel embedding_kernel[*i64,")
    assert ids.endswith(command), "token ids may begin at any address"
    assert "small" in caught["other-model"]
    assert caught["other-model"].endswith(command)


@pytest.mark.parametrize(
    ("name", "value"), [("TRITON_DEBUG", "1"), ("PTXAS_OPTIONS", "-O1"), ("MLIR_ENABLE_DUMP", "1")]
)
def test_another_environment_is_refused(workshop: Workshop, casts, name, value):
    """With any of these every key would be another."""
    arguments = ["tests.cast.sealed_process", str(casts["sm_90"]), str(workshop.profile)]
    done = workshop.run(*arguments, **{name: value})
    assert done.returncode == 1
    assert f"{name}={value}." in done.stderr
    assert f"unset {name}" in done.stderr


def test_another_triton_is_refused(workshop: Workshop, casts, tmp_path: Path):
    (tmp_path / "triton-9.9.0.dist-info").mkdir()
    (tmp_path / "triton-9.9.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: triton\nVersion: 9.9.0\n"
    )
    path = f"{tmp_path}:{workshop.environ()['PYTHONPATH']}"
    done = workshop.run("tests.cast.sealed_process", str(casts["sm_90"]), str(workshop.profile), PYTHONPATH=path)
    assert done.returncode == 1
    assert "CastError" in done.stderr
    assert "9.9.0" in done.stderr


def test_a_changed_kernel_is_not_loaded(workshop: Workshop, casts, tmp_path: Path):
    """Its size is the same: what counts is its hash, when it is loaded."""
    cast = copied(casts["sm_90"], tmp_path)
    kernel = next(cast.rglob("rms_norm_kernel.cubin"))
    content = bytearray(kernel.read_bytes())
    content[-1] ^= 1
    kernel.write_bytes(content)
    done = workshop.run("tests.cast.sealed_process", str(cast), str(workshop.profile))
    assert done.returncode == 1
    assert "CastError" in done.stderr
    assert str(kernel) in done.stderr


def test_a_manifest_that_was_edited_is_refused(workshop: Workshop, casts, tmp_path: Path):
    """Even where it is still a manifest: here it was made to fit another architecture."""
    cast = copied(casts["sm_90"], tmp_path)
    path = cast / manifest.NAME
    edited = json.loads(path.read_bytes()) | {"architecture": "sm_120"}
    path.write_bytes(msgspec.json.encode(edited))
    done = workshop.run("tests.cast.sealed_process", str(cast), str(workshop.profile))
    assert done.returncode == 1
    assert "CastError" in done.stderr
    assert str(path) in done.stderr


def test_no_file_of_a_cast_tells_where_it_was_made(casts: dict[str, Path]):
    """Neither this repository's place, nor Triton's, nor a temporary folder's."""
    import triton

    strangers = [str(Path(__file__).parents[2]), str(Path(triton.__file__).parent), str(casts["sm_90"].parent)]
    for path in casts["sm_90"].rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not [place for place in strangers if place.encode() in content], path
