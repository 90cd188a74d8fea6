"""The script that makes a base image of Debian's packages, with commands of its own in place of Docker, debootstrap and
the chroot, which need root and a mirror."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("stand-in-base.sh")
COMMANDS = {
    "docker": '[ "$1" = import ] && cat >"$IMPORTED"',
    "id": "echo 0",
    "apt-get": "echo bookworm main http://mirror/debian/",
    "debootstrap": 'cd "$(mkdir -p "$4" && echo "$4")" && mkdir -p '
    "usr/sbin usr/share/doc usr/local/share etc/apt/sources.list.d etc/apt/apt.conf.d var/log",
    # What update-ca-certificates does first: a temporary folder, inside of the new root.
    "chroot": 'mktemp --directory "$1${TMPDIR:-}/XXXXXX" && [ ! -e "$BROKEN" ]',
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, body in COMMANDS.items():
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)
    (tmp_path / "temporary").mkdir()
    return {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "TMPDIR": str(tmp_path / "temporary"),
        "IMPORTED": str(tmp_path / "image.tar"),
        "BROKEN": str(tmp_path / "broken"),
    }


def make(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT], env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_a_temporary_folder_of_this_machine_is_not_looked_for_in_the_image(environ: dict[str, str]) -> None:
    done = make(environ)
    assert done.returncode == 0, done.stderr
    assert Path(environ["IMPORTED"]).stat().st_size > 0
    assert list(Path(environ["TMPDIR"]).iterdir()) == []


def test_certificates_that_fail_are_reported(environ: dict[str, str]) -> None:
    Path(environ["BROKEN"]).touch()
    done = make(environ)
    assert done.returncode == 1
    assert "certificates" in done.stderr
    assert not Path(environ["IMPORTED"]).exists()
