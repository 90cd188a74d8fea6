"""Making a cast: failures are named, finished kernels are kept, and two casts are identical."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from click.testing import CliRunner

from appliance.cast.cast_command import cast as cast_command
from kernels.cast import build as building
from kernels.cast import check, folder, manifest
from kernels.cast.architectures import ARCHITECTURES
from kernels.cast.build import build
from kernels.cast.errors import CastError
from kernels.variants import Variant, variant
from tests.cast.casting import order

ROOT = Path(__file__).parents[2]


def odd(name: str, block: int = 128, num_stages: int = 1) -> Variant:
    """Of `odd_kernels`."""
    kernel = f"tests.cast.odd_kernels:{name}_kernel"
    return variant("odd", kernel, ("*fp32", "i32"), {"BLOCK": block}, num_stages=num_stages)


def contents(cast: Path) -> dict[str, bytes]:
    return {str(path.relative_to(cast)): path.read_bytes() for path in (cast / "triton").rglob("*") if path.is_file()}


def casting(place: Path, count: int, root: Path = ROOT) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.cast.casting", "sm_80", str(place), str(count)],
        env=environ | {"PYTHONPATH": str(root)},
        cwd=root,
        stderr=subprocess.PIPE,
    )


def test_what_cannot_be_compiled_is_named_and_the_rest_goes_on(tmp_path: Path):
    """A compiler's crash, an error in a kernel, a number that became part of a variant, more shared memory than the
    architecture has, and a key that would be random: each by its variant. The others are kept, and the next
    cast takes them over."""
    names = ("well", "deadly", "forgetful", "greedy", "twice", "wrong")
    variants = {name: odd(name, num_stages=4 if name == "greedy" else 1) for name in names}
    last = odd("well", block=64)
    heard: list[str] = []
    outcome = build(order(tmp_path / "cast", [*variants.values(), last]), heard.append)
    assert heard == [variant.name for variant in (*variants.values(), last)]
    told = {name: outcome.failed.get(variant.name, "") for name, variant in variants.items()}
    assert told["well"] == ""
    assert "killed by signal SIGKILL" in told["deadly"]
    assert {"count", "do_not_specialize"} <= set(told["forgetful"].split())
    assert "shared memory" in told["greedy"]
    assert "SCALE" in told["twice"]
    assert "CompilationError" in told["wrong"]
    assert outcome.manifest is None
    with pytest.raises(CastError, match=r"\b2 of 7\b") as unfinished:
        check.read(tmp_path / "cast")
    assert unfinished.value.id == "cast-unfinished"
    assert unfinished.value.command == f"ingot cast --arch sm_80 --out {tmp_path / 'cast'}"

    again = build(order(tmp_path / "cast", [variants["well"], last]), heard.append)
    assert again.kept == 2
    assert again.manifest == check.read(tmp_path / "cast")
    assert [variant.registers for variant in again.manifest.variants] != [None, None]
    assert not list(check.changed_files(again.manifest, tmp_path / "cast"))


def test_a_cast_that_was_killed_goes_on_where_it_was(tmp_path: Path):
    """kill -9 of the process that casts: its workers end by themselves, and what was done is whole."""
    place = tmp_path / "cast"
    first = casting(place, 40)
    deadline = time.monotonic() + 60
    while not (place / folder.JOURNAL).exists() or (place / folder.JOURNAL).read_bytes().count(b"\n") < 3:
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    with pytest.raises(CastError) as unfinished:
        check.read(place)
    assert unfinished.value.id == "cast-unfinished"
    before = contents(place)
    again = casting(place, 4)
    assert again.wait(60) == 0, again.stderr.read()
    found = check.read(place)
    assert len(found.variants) == 4
    assert not list(check.changed_files(found, place))
    assert [path for path, content in contents(place).items() if before.get(path) == content]
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if str(place) in (process.info["cmdline"] or [])
    ]


def test_what_was_changed_is_compiled_again_to_the_same_bytes(tmp_path: Path):
    place = tmp_path / "cast"
    variants = [odd("well"), odd("well", block=64)]
    build(order(place, variants), lambda _: None)
    before = contents(place)
    damaged = next(path for path in place.rglob("*.cubin"))
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    outcome = build(order(place, variants), lambda _: None)
    assert outcome.kept == 1
    assert contents(place) == before


def test_two_casts_are_alike_wherever_the_repository_lies(tmp_path: Path):
    """Keys, kernels and host stubs, byte for byte."""
    copy = tmp_path / "a" / "deeper" / "place"
    for name in ("kernels", "tests/cast"):
        shutil.copytree(ROOT / name, copy / name)
    (copy / "tests" / "__init__.py").touch()
    casts = [(tmp_path / "one", ROOT), (tmp_path / "two", copy)]
    processes = [casting(place, 3, root) for place, root in casts]
    for process in processes:
        assert process.wait(90) == 0, process.stderr.read()
    one, two = (contents(place) for place, _ in casts)
    assert len(one) > 3
    assert one == two


def test_a_folder_of_another_cast_is_left_alone(tmp_path: Path):
    """Of another architecture, or other versions; or with something else in it."""
    place = tmp_path / "cast"
    build(order(place, [odd("well")]), lambda _: None)
    written = (place / manifest.NAME).read_bytes()
    with pytest.raises(CastError, match=r"sm_80.*sm_90") as refused:
        build(order(place, [odd("well")], "sm_90"), lambda _: None)
    other = manifest.parse(written, place)
    manifest.write(
        msgspec.structs.replace(other, versions=msgspec.structs.replace(other.versions, triton="1.0")), place
    )
    assert refused.value.id == "cast-folder-other-cast"
    with pytest.raises(CastError, match=r"triton 1\.0") as refused:
        build(order(place, [odd("well")]), lambda _: None)
    assert refused.value.id == "cast-folder-other-cast"
    assert refused.value.command is None, "whatever is there may be somebody's"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    with pytest.raises(CastError) as refused:
        build(order(tmp_path / "full", [odd("well")]), lambda _: None)
    assert refused.value.id == "cast-folder-not-empty"
    assert (tmp_path / "full" / "thesis.txt").exists()


def test_a_missing_compiler_is_reported_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CastError, match="gcc, cc, clang") as missing:
        build(order(tmp_path / "cast", [odd("well")]), lambda _: None)
    assert missing.value.command == "apt-get install gcc libc6-dev"
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CastError, match="CC=no-such-compiler"):
        build(order(tmp_path / "cast", [odd("well")]), lambda _: None)


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 300 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", place], check=False).returncode == 0
    if not mounted:
        pytest.skip("a small file system can only be mounted by root")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_is_reported_with_how_much_is_needed(small_disk: Path, monkeypatch: pytest.MonkeyPatch):
    """Before it begins, where that can be foreseen; and in the middle, where not."""
    place = small_disk / "cast"
    variants = [odd("well", block=16 << place) for place in range(6)]
    many = variants * (300 * 1024 // building.BYTES_PER_VARIANT + 1)
    with pytest.raises(CastError, match=rf"\b{len(many)}\b") as full:
        build(order(place, many), lambda _: None)
    assert full.value.id == "cast-disk-full"
    with pytest.raises(CastError, match=r"\b2\.2 MB") as full:  # with room for the compiler
        build(order(place, [odd("well")]), lambda _: None)
    assert full.value.id == "cast-disk-full"
    monkeypatch.setattr(building, "BYTES_PER_VARIANT", 1)
    monkeypatch.setattr(building, "SCRATCH_PER_JOB", 1)
    (small_disk / "ballast").write_bytes(bytes(220 * 1024))
    with pytest.raises(CastError) as full:
        build(order(place, variants), lambda _: None)
    assert full.value.id == "cast-disk-full"
    (small_disk / "ballast").unlink()
    assert build(order(place, variants), lambda _: None).manifest is not None


def test_an_unwritable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))

    monkeypatch.setattr("appliance.cast.cast_command.build.build", refuse)
    done = CliRunner().invoke(cast_command, ["--arch", "90", "--out", str(tmp_path)])
    assert done.exit_code == 1
    last = done.output.splitlines()[-1]
    assert all(word in last for word in (str(tmp_path), "Read-only file system", "--out"))


def test_an_unknown_architecture_is_reported_with_the_known_ones(tmp_path: Path):
    done = CliRunner().invoke(cast_command, ["--arch", "sm_70", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "'sm_70'" in done.output
    assert all(name in done.output for name in ARCHITECTURES)


def test_a_manifest_says_what_it_is_and_notices_a_change(tmp_path: Path):
    """Half written, of a newer Ingot, or changed by hand in one letter."""
    place = tmp_path / "cast"
    made = build(order(place, [odd("well")]), lambda _: None).manifest
    path = place / manifest.NAME
    text = path.read_bytes()
    assert manifest.parse(text, path) == made
    for changed, told in (
        (text[: len(text) // 2], "cast-unreadable"),
        (text.replace(b'"op": "odd"', b'"op": "add"'), "cast-edited"),
        (json.dumps(json.loads(text) | {"format": 2, "news": 1}).encode(), "cast-too-new"),
    ):
        with pytest.raises(CastError) as refused:
            manifest.parse(changed, path)
        assert refused.value.id == told
