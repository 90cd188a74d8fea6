"""install.sh is cut into parts here, and one script that reads from its top to its end where it runs."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from appliance.bundle.install_script import PARTS, install_script


def test_it_reads_from_its_top():
    """First what it is for, last what starts it; nothing runs before, so that half a script does nothing."""
    script = install_script("f" * 64)
    assert script.startswith("#!/bin/sh\n# Installs, upgrades and rolls back Ingot from a bundle")
    assert script.endswith('\nmain "$@"\nexit\n')
    assert script.count(f"\ngate_sha256='{'f' * 64}'\n") == 1


@pytest.mark.parametrize("part", sorted(path.name for path in PARTS.iterdir()))
def test_a_part_is_short_and_says_what_it_is_for(part):
    """Of under 200 lines of under 120 characters; its number says where it goes."""
    assert re.fullmatch(r"\d\d-[a-z]+\.sh", part)
    lines = (PARTS / part).read_text().splitlines()
    assert len(lines) < 200
    assert [line for line in lines if len(line) >= 120] == []
    first, second = (lines[1], lines[2]) if part.startswith("00-") else (lines[0], lines[1])
    assert first.startswith("# ")
    assert second.startswith("# ")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing():
    done = subprocess.run(["shellcheck", "-"], input=install_script(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("shell", ["dash", "busybox", "bash"])
def test_any_posix_shell_reads_it(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = [shell, "sh", "-n"] if shell == "busybox" else [shell, "-n"]
    done = subprocess.run(command, input=install_script(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
