"""install.sh where the bundle is cut, damaged or pulled out, and where it was stopped: it says where, and goes on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from appliance.bundle.signature import Key
from tests.bundle.install_site import BUNDLE, LOCKED, make

# --------------------------------------------------------------------------------------------------------------- parts


@pytest.fixture
def parts(tmp_path: Path, key: Key) -> list[Path]:
    """A bundle in parts."""
    bundle = make(tmp_path / "stick", "1.0", key, part_size=150_000)
    return sorted(bundle.parent.glob("bundle.tar.*"))


def test_parts(site, parts):
    """Named by their common name or by the first, or found beside the script."""
    assert len(parts) > 3
    status, told = site.run(parts[0].with_name("install.sh"), "--into", site.into, "--public-key", site.key.public.text)
    assert status == 0, told
    assert site.release() == "1.0"


@pytest.mark.parametrize("number", [1, -1])
def test_a_missing_part_is_named(site, parts, number):
    parts[number].unlink()
    status, told = site.install(parts[0].with_suffix(""))
    assert status == BUNDLE
    assert parts[number].name in told
    assert not site.calls("load")
    assert not site.calls("minisign")


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_part_that_was_not_copied_whole_is_named(site, parts, number):
    """By its length, before anything is loaded; the first by that of the others, the last by what the head tells."""
    whole = parts[number].stat().st_size
    os.truncate(parts[number], whole - 512)
    status, told = site.install(parts[0])
    assert status == BUNDLE
    assert all(value in told for value in (parts[number].name, str(whole - 512), str(whole)))
    assert not site.calls("load")
    assert not site.calls("minisign")


def test_a_part_of_another_bundle_is_named(site, parts):
    """Left on the stick by a larger one."""
    last = parts[-1].with_suffix(f".{len(parts) + 1:03d}")
    last.write_bytes(b"of another")
    assert site.install(parts[0])[0] == BUNDLE
    assert not site.calls("load")
    last.unlink()
    assert site.install(parts[0])[0] == 0


def test_a_bundle_that_was_not_copied_whole(site, first, tmp_path):
    """Told with both lengths, whatever file the end lies in, and before anything is loaded."""
    whole = first.stat().st_size
    cut = tmp_path / "cut" / first.name
    cut.parent.mkdir()
    shutil.copy(first, cut)
    shutil.copy(first.with_name("install.sh"), cut.parent)
    for missing in (512, 100_000, 200_000):
        os.truncate(cut, whole - missing)
        status, told = site.install(cut)
        assert status == BUNDLE, told
        assert all(str(size) in told for size in (whole - missing, whole))
        assert not site.calls("load")
        assert not site.calls("minisign")


def test_a_damaged_part_is_named(site, parts):
    """And after it was copied again, the same goes on."""
    whole = parts[2].read_bytes()
    parts[2].write_bytes(whole[:70_000] + bytes([whole[70_000] ^ 1]) + whole[70_001:])
    status, told = site.install(parts[0])
    assert status == BUNDLE
    assert parts[2].name in told
    parts[2].write_bytes(whole)
    status, told = site.install(parts[0])
    assert status == 0, told


def test_a_stick_that_is_pulled_out(site, parts):
    """Told as such, and not as a bundle that somebody changed; plugged in again, the same goes on."""
    tools = site.folder / "tools"
    tools.mkdir()
    lines = (
        f'case $* in *.003) echo "cat: $*: Input/output error" >&2; exit 1;; esac\nexec {shutil.which("cat")} "$@"\n'
    )
    (tools / "cat").write_text(f"#!/bin/sh\n{lines}")
    (tools / "cat").chmod(0o755)
    arguments = (parts[0], "--into", site.into, "--public-key", site.key.public.text)
    status, told = site.run(parts[0].with_name("install.sh"), *arguments, first_path=tools)
    assert status == 1
    assert f"{parts[2]}: Input/output error" in told
    status, told = site.install(parts[0])
    assert status == 0, told


# --------------------------------------------------------------------------------------------------------- interrupted


def test_an_interrupted_install_goes_on(site, first):
    """Killed while an image is loaded: what was loaded before is not loaded again, and nothing is read twice."""
    site.say("power-cut", "console.tar.zst")
    status, told = site.install(first)
    assert status != 0
    assert [call.rsplit("/", 1)[1] for call in site.calls("load")] == ["gate.tar.zst", "console.tar.zst"]
    (site.told / "calls").unlink()
    status, told = site.install(first)
    assert status == 0, told
    assert [call.rsplit("/", 1)[1] for call in site.calls("load")] == ["console.tar.zst", "engine.tar.zst"]
    assert "Reading" not in told


def test_one_at_a_time(installed, first):
    """A living process holds the lock; one that is gone, or was before a restart of the machine, does not."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    lock = installed.into / ".lock"
    lock.symlink_to(f"{os.getpid()} {stat[19]} {boot}")
    status, told = installed.again(first)
    assert status == LOCKED
    assert f"process {os.getpid()}" in told
    for stale in (f"{os.getpid()} 1 {boot}", f"{os.getpid()} {stat[19]} another-boot"):
        lock.unlink(missing_ok=True)
        lock.symlink_to(stale)
        assert installed.again(first)[0] == 0
        assert not os.path.lexists(lock)
