"""What a cast from elsewhere says is taken for what it is: nothing leads out of its folder."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernels.cast import check, commands, files, manifest
from kernels.cast.errors import CastError
from kernels.cast.folder import Head, is_unchanged, read_journal
from kernels.cast.manifest import CastVariant, File, Manifest, Versions
from kernels.cast.sealed_cache import SealedCache

VERSIONS = Versions(ingot="0", triton="3", triton_build="", python="", ptxas="", libc="")
KERNEL = CastVariant(op="odd", name="odd", keys=("KEY",), shared=0)


def file(cast: Path, path: str, content: bytes = b"x") -> File:
    place = cast / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return File(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def written(cast: Path, **changes: Any) -> Manifest:
    """A cast of one file and one kernel, but for `changes`, as its author would write it: the digest fits."""
    listed = (file(cast, "triton/KEY/odd.cubin"),)
    fields: dict[str, Any] = {
        "architecture": "sm_90",
        "versions": VERSIONS,
        "variants": (KERNEL,),
        "files": listed,
    } | changes
    return manifest.write(Manifest(**fields, built=0.0, seconds=0.0), cast)


@pytest.mark.parametrize(
    "path",
    [
        "triton/KEY/../../../evil.so", "triton/../evil.so", "/etc/passwd", "triton/KEY/a/b", "triton/KEY", "triton//a",
        "triton/KEY/a\0b", "triton/KEY/.hidden", "elsewhere/KEY/a", "triton/KEY/a\n",
    ],
)  # fmt: skip
def test_a_path_out_of_the_cast_is_refused(tmp_path: Path, path: str):
    """By the manifest and by the journal of an unfinished cast."""
    wrong = {"path": path, "size": 1, "sha256": ""}
    document = msgspec.to_builtins(written(tmp_path)) | {"files": [wrong]}
    with pytest.raises(CastError) as refused:
        manifest.parse(msgspec.json.encode(document), tmp_path)
    assert refused.value.id == "cast-unreadable"
    head = msgspec.json.encode(Head(architecture="sm_90", versions=VERSIONS, planned=1))
    entry = msgspec.json.encode({"variant": KERNEL, "files": [wrong]})
    (tmp_path / "unfinished.jsonl").write_bytes(head + b"\n" + entry + b"\n")
    with pytest.raises(CastError) as refused:
        read_journal(tmp_path)
    assert refused.value.id == "cast-unreadable"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architecture": "90"}, "'90'"),
        ({"architecture": "sm_ninety"}, "'sm_ninety'"),
        ({"files": ()}, "'KEY'"),
        ({"variants": (msgspec.structs.replace(KERNEL, keys=("../KEY",)),)}, "'../KEY'"),
        ({"flashinfer": ("norm",)}, "'norm'"),
    ],
)
def test_a_manifest_that_cannot_be_so_is_refused(tmp_path: Path, changes: dict[str, Any], named: str):
    """An architecture that there is not, kernels and modules without files: its digest says nothing of that."""
    written(tmp_path, **changes)
    with pytest.raises(CastError) as refused:
        check.read(tmp_path)
    assert refused.value.id == "cast-unreadable"
    assert named in refused.value.message


@pytest.mark.parametrize("linked", ["triton", "triton/KEY", "triton/KEY/odd.cubin"])
def test_a_symbolic_link_is_not_followed(tmp_path: Path, linked: str):
    """Neither where a cast is compared with its manifest, nor where a kernel is loaded; the content would be right."""
    cast = tmp_path / "cast"
    made = written(cast)
    (cast / linked).rename(tmp_path / "elsewhere")
    (cast / linked).symlink_to(tmp_path / "elsewhere")
    (problem,) = check.changed_files(made, cast)
    assert "triton/KEY/odd.cubin" in problem
    assert not is_unchanged(made.files[0], cast)
    SealedCache.folder, SealedCache.files = cast, {each.path: each for each in made.files}
    with pytest.raises(CastError, match=r"odd\.cubin") as refused:
        SealedCache("KEY").get_group("odd.cubin")
    assert refused.value.id == "cast-changed"


def test_a_library_that_the_manifest_does_not_name_is_reported(tmp_path: Path):
    """FlashInfer would load it, and its hash would be nowhere."""
    made = written(tmp_path)
    assert not list(check.against_files(made, tmp_path, within="flashinfer/"))
    file(tmp_path, "flashinfer/norm/norm.so")
    (wrong,) = check.against_files(made, tmp_path, within="flashinfer/")
    assert wrong.id == "cast-changed"
    assert "flashinfer/norm/norm.so" in wrong.message
    (tmp_path / "flashinfer" / "norm").rename(tmp_path / "norm")
    (tmp_path / "flashinfer" / "norm").symlink_to(tmp_path / "norm")
    assert list(files.libraries(tmp_path)) == ["flashinfer/norm/norm.so"]


def test_a_command_takes_a_path_as_one_word():
    place = Path("/my casts/a; rm -r b")
    assert shlex.split(commands.cast("sm_90", place))[-1] == str(place)
    assert shlex.split(commands.verify(place))[-1] == str(place)
    assert commands.cast("sm_90", Path("casts/sm_90")) == "ingot cast --arch sm_90 --out casts/sm_90"
