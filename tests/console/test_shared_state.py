"""The state folder where engine and console are two users, as in the containers: what each may do in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.home import Home, write_atomically
from appliance.home_lock import OwnerLock
from appliance.launches.folder import LaunchFolder
from console.access.token import ensure_console_token, program_header
from console.engine_control.shared_state import share

CONSOLE, ENGINE, GROUP = 10001, 10002, 10001
ROOT = Path(__file__).resolve().parents[2]
PRIVATE = (
    "ingot.db", "ingot.db-wal", "console-token", "console.json", "console.lock", "imports.json", "engine-machine.json",
    "backups/backup.tar.gz", "trusted-keys/site.pub", "restore-pending/ingot.db",
)  # fmt: skip
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it runs as two other users")

IMPORTS = """
import os, shutil, sys
from pathlib import Path
from appliance.home import Home, write_atomically
from appliance.launches.folder import LaunchFolder
from appliance.home_lock import OwnerLock
from console.access.token import ensure_console_token
from console.engine_control.shared_state import share
import appliance.profile.document
"""
# As versions wrote it in which both were one user: everything is that user's alone, or open to all.
BEFORE = """
home = Home.at(sys.argv[1]).create()
home.root.chmod(0o700)
for number, name in enumerate(sys.argv[2:]):
    path = home.root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("secret")
    path.chmod(0o644 if number % 2 else 0o600)
folder = LaunchFolder.create(home, "20261120-000000-0001")
folder.log.write_text("of before\\n")
folder.write_stacks("of before")
(home.root / "caches" / "vllm").mkdir(parents=True)
(home.active / "profile.yaml").write_text("profile: {}")
(home.active / "console-token").write_text("known to the engine")
"""
SHARE = """
home = Home.at(sys.argv[1]).create()
share(home)
ensure_console_token(home)
"""
# What an engine does in its own launches, and what it tries elsewhere: prints what succeeded that must not.
ENGINE_TRIES = """
home = Home.at(sys.argv[1]).create()
OwnerLock(home.lock)
home.active_profile.read_text()
home.front_door_digest.read_text()
assert LaunchFolder(home.launch("20261120-000000-0001")).read_stacks() == "of before"
folder = LaunchFolder.create(home, "20261121-000000-0002")
folder.log.write_text("of the engine\\n")
folder.write_stacks("of the engine")
(home.selftest / "answers.json").write_text("{}")
(home.root / "caches" / "vllm" / "made").mkdir()

def trying(what, path):
    try:
        what(path)
    except (PermissionError, FileNotFoundError):
        return
    print(what.__name__, path)

def lists(path): os.listdir(path)
def reads(path): Path(path).read_bytes()
def writes(path): Path(path).open("r+b")
def removes(path): Path(path).unlink()
def makes(path): (Path(path) / "made").touch()

trying(lists, home.root)
for folder in (home.root, home.active, home.root / "backups"):
    trying(makes, folder)
for name in sys.argv[2:]:
    for what in (reads, writes, removes):
        trying(what, home.root / name)
for name in ("profile.yaml", "console-token.sha256"):
    for what in (writes, removes):
        trying(what, home.active / name)
trying(reads, home.active / "console-token")
"""
CONSOLE_READS = """
home = Home.at(sys.argv[1]).create()
folder = LaunchFolder(home.launch("20261121-000000-0002"))
print(folder.log.read_text(), folder.read_stacks())
write_atomically(folder.path / "follow-up.json", "{}")
shutil.rmtree(folder.path)
"""
EARLIER_ENGINE = """
home = Home.at(sys.argv[1]).create()
OwnerLock(home.lock)
LaunchFolder.create(home, "20261122-000000-0003").write_stacks("")
(home.selftest / "answers.json").write_text("{}")
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that both can reach, as pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="ingot-shared-") as folder:
        Path(folder).chmod(0o755)
        root = Path(folder, "state")
        root.mkdir(mode=0o700)
        os.chown(root, CONSOLE, GROUP)
        yield root


def run(user: int, program: str, *arguments: str | Path) -> str:
    """As one of the two, whose only group is theirs. Python and our code may lie where neither can read them."""
    become = f"import os\nos.setgroups([])\nos.setgid({GROUP})\nos.setuid({user})\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{IMPORTS}{become}{program}", *map(str, arguments)],
        capture_output=True, text=True, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_root
def test_the_engine_gets_what_is_its_own_and_nothing_of_the_consoles(shared):
    """Of a state folder that an earlier version wrote: no file of the console's can be read, written or removed, and
    each reads what the other wrote into the launches."""
    run(CONSOLE, BEFORE, shared, *PRIVATE)
    run(CONSOLE, SHARE, shared)
    assert run(ENGINE, ENGINE_TRIES, shared, *PRIVATE) == ""
    assert run(CONSOLE, CONSOLE_READS, shared) == "of the engine\n of the engine\n"


@needs_root
def test_an_earlier_version_goes_on_in_what_a_later_one_wrote(shared):
    """For a roll-back: there, both were the console's user."""
    run(CONSOLE, BEFORE, shared, *PRIVATE)
    run(CONSOLE, SHARE, shared)
    run(ENGINE, ENGINE_TRIES, shared, *PRIVATE)
    assert "of the engine" in run(CONSOLE, CONSOLE_READS, shared)
    run(CONSOLE, EARLIER_ENGINE, shared)


def test_nothing_that_an_engine_left_is_followed(home):
    """A link out of the launches, to another name of a private file or to its folder, shares neither."""
    private = home.root / "ingot.db"
    private.write_text("accounts")
    private.chmod(0o600)
    folder = home.root / "backups"
    folder.mkdir(mode=0o700)
    launch = LaunchFolder.create(home, "20261120-000000-0001")
    (launch.path / "engine.log").symlink_to(private)
    (launch.path / "folder").symlink_to(folder)
    os.link(private, launch.path / "stacks.txt")
    os.mkfifo(launch.path / "pipe")
    share(home)
    assert private.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_where_engine_and_console_are_one_user_nobody_else_sees_anything(home):
    """`ingot up` without containers."""
    ensure_console_token(home)
    assert program_header(home)
    lock = OwnerLock(home.lock)
    folder = LaunchFolder.create(home, "20261120-000000-0001")
    folder.write_stacks("")
    write_atomically(home.active_profile, "")
    lock.release()
    open_to_others = [path for path in (home.root, *home.root.rglob("*")) if path.stat().st_mode & 0o077]
    assert open_to_others == []


def test_sharing_again_changes_nothing(home):
    share(home)
    before = {path: path.stat().st_mode for path in home.root.rglob("*")}
    share(home)
    assert {path: path.stat().st_mode for path in home.root.rglob("*")} == before
    assert isinstance(home, Home)
