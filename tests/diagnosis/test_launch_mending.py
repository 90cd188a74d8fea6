"""What changes the machine for one of Ingot's own launches, done by a real shell where it can be."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.diagnosis.launch_mending import COMPILED, LIMITS, Site
from appliance.diagnosis.restoring import in_words


@pytest.fixture
def front_door() -> Iterator[int]:
    """A process with a limit on open files below what it may have."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (min(512, hard), hard))
    yield process.pid
    process.kill()
    process.wait()


def site(home: Path, *, front_door: int | None = None, in_container: bool = False) -> Site:
    return Site(home, Path(sys.executable), front_door, in_container)


def test_a_limit_is_raised_where_engines_inherit_it(tmp_path: Path, front_door: int) -> None:
    command = site(tmp_path, front_door=front_door).with_limit("host", "too-many-open-files")
    assert command is not None
    subprocess.run(["sh", "-c", command], check=True)
    soft, hard = resource.prlimit(front_door, resource.RLIMIT_NOFILE)
    assert soft == hard


def test_at_the_hard_limit_it_takes_root(tmp_path: Path, front_door: int) -> None:
    resource.prlimit(front_door, resource.RLIMIT_NOFILE, (512, 512))
    command = site(tmp_path, front_door=front_door).with_limit("host", "too-many-open-files")
    assert command == f"sudo prlimit --pid {front_door} --nofile=65536"


@pytest.mark.parametrize(("family", "cause"), LIMITS)
def test_without_a_limit_or_a_process_there_is_nothing_to_raise(family: str, cause: str, tmp_path: Path) -> None:
    kind, _ = LIMITS[family, cause]
    assert site(tmp_path).with_limit(family, cause) is None
    if resource.getrlimit(kind)[0] == resource.RLIM_INFINITY:
        assert site(tmp_path, front_door=os.getpid()).with_limit(family, cause) is None
    assert site(tmp_path, front_door=os.getpid()).with_limit("host", "disk-full") is None


def test_ingots_own_caches_get_their_owner_back(tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    own = f"sudo chown -R {os.getuid()}:{os.getgid()} {caches}"
    assert site(tmp_path).with_own_caches(str(caches / "vllm" / "triton")) == own
    assert site(tmp_path).with_own_caches("/srv/caches/vllm") is None
    assert site(tmp_path).with_own_caches(f"{caches}/../models") is None


def test_what_was_compiled_goes_and_nothing_else(tmp_path: Path) -> None:
    assert site(tmp_path).without_compiled() is None
    folders = [tmp_path / "caches" / "vllm" / name for name in (*COMPILED, "huggingface")]
    for folder in folders:
        folder.mkdir(parents=True)
    command = site(tmp_path).without_compiled()
    assert command is not None
    subprocess.run(["sh", "-c", command], check=True)
    assert [folder.is_dir() for folder in folders] == [False] * len(COMPILED) + [True]


def test_a_package_is_for_the_python_that_lacked_it(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    here = site(tmp_path)._replace(python=python)
    assert here.with_package("ray") is None  # without pip
    pip = tmp_path / "lib" / "python3.12" / "site-packages" / "pip"
    pip.mkdir(parents=True)
    (pip / "__main__.py").touch()
    assert here.with_package("ray") == f"{python} -m pip install ray"
    assert here._replace(in_container=True).with_package("ray") is None
    assert here._replace(in_container=True).with_program("git") is None


@pytest.mark.parametrize(("files", "said"), [("a", "a"), ("ab", "a and 1 more file"), ("abc", "a and 2 more files")])
def test_files_are_counted_in_words(files: str, said: str) -> None:
    assert in_words(tuple(files)) == said
