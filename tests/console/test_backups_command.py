"""`ingot backup`, the real command in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import click
import pytest

from appliance.cli import main
from appliance.home import Home
from appliance.home_lock import OwnerLock
from console.backups import interrupted_restore, restore_steps
from tests.console.backup_states import back_up, bring_back, fill, put, replaced, rows
from tests.running import end, free_port


@pytest.fixture
def state(home, fresh_database):
    return fill(home, fresh_database)


def run(home: Home, *arguments: str, give: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "appliance.cli", "backup", *arguments],
        env={**os.environ, "INGOT_HOME": str(home.root)},
        input=give or b"",
        capture_output=True,
        timeout=60,
    )


def test_create_list_verify_restore(state, tmp_path):
    """Into a folder, listed by what is in it, verified, and restored into an empty state folder."""
    stick = tmp_path / "stick"
    stick.mkdir()
    made = json.loads(run(state, "create", "--out", str(stick), "--json").stdout)
    assert Path(made["path"]).parent == stick
    assert (made["contents"]["active"], made["contents"]["launches"]) == ("p r2", 1)
    assert json.loads(run(state, "list", "--json").stdout) == []
    run(state, "create", "--without-launches")
    (listed,) = json.loads(run(state, "list", "--json").stdout)
    assert listed["summary"]["with_launches"] is False
    assert listed["name"].encode() in run(state, "list").stdout
    verified = run(state, "verify", listed["name"])
    assert verified.returncode == 0
    other = Home.at(tmp_path / "other")
    restored = run(other, "restore", made["path"], "--yes")
    assert restored.returncode == 0, restored.stderr
    assert b"p-admin" in restored.stdout
    assert rows(other) == rows(state)


def test_through_pipes(state, tmp_path):
    """As in containers: out of one and into another, without a file that both can see."""
    piped = run(state, "create", "--out", "-").stdout
    assert list((state.root / "backups").iterdir()) == []
    other = Home.at(tmp_path / "other")
    restored = json.loads(run(other, "restore", "-", "--yes", "--json", give=piped).stdout)
    assert restored["launches"] == 1
    assert rows(other) == rows(state)


def test_a_pipe_that_breaks(state):
    """What could not be written out does not stay behind on the disk that was to be spared."""
    put(state.launch("20261120-000000-pppp") / "engine.log", os.urandom(1 << 20))
    command = [sys.executable, "-m", "appliance.cli", "backup", "create", "--out", "-"]
    environ = {**os.environ, "INGOT_HOME": str(state.root)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as making:
        making.stdout.close()
        assert making.wait(60) != 0
    assert list((state.root / "backups").iterdir()) == []


ROOT = Path(__file__).parents[2]


def test_the_documented_commands_for_containers():
    """The image begins with `ingot`: `docker compose run` leaves the word out, and `exec` has it."""
    texts = [path.read_text() for path in [*(ROOT / "docs").glob("*.md"), *(ROOT / "console").rglob("*.html")]]
    pattern = r"docker compose (run|exec) ((?:-\S+ |10001:10001 )*)(?:console|engine) (\S+) (\S+)"
    found = [match.groups() for text in texts for match in re.finditer(pattern, text)]
    carries = {"sh", "cat"}  # a file in or out, as `exec` can
    asked = [words for words in found if "--entrypoint" not in words[1] and words[2] not in carries]
    assert len(asked) > 4
    for how, _, first, second in asked:
        command = second if how == "exec" else first
        assert (first == "ingot") == (how == "exec"), (how, first, second)
        assert command in main.list_commands(click.Context(main)), command


def test_not_while_a_console_runs(state):
    """The page does it there; the state stays as it is. A backup can be made all the same."""
    path = back_up(state)
    before = replaced(state)
    lock = OwnerLock(state.console_lock, "ingot up")
    refused = run(state, "restore", str(path), "--yes")
    assert refused.returncode == 3
    assert run(state, "create").returncode == 0
    lock.release()
    assert replaced(state) == before


@pytest.fixture
def decided(state, tmp_path, fresh_database, monkeypatch):
    """A restore that was killed as soon as it was decided."""
    backup = back_up(fill(Home.at(tmp_path / "other"), fresh_database, "other"))
    with monkeypatch.context() as patch:
        patch.setattr(restore_steps, "carry_out", lambda home: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            bring_back(state, backup)
    assert (state.root / interrupted_restore.PENDING).is_dir()
    return state


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["restore", "nothing.tar.gz", "--yes"], "not-found"),
        (["restore", "/etc/hostname", "--yes"], "not-a-backup"),
        (["restore", "/etc/hostname"], None),
        (["verify", "/etc/hostname"], "not-a-backup"),
        (["create", "--out", "/etc/hostname"], "file-exists"),
        (["create", "--out", "/nowhere/x.tar.gz"], "no-folder"),
        (["create", "--out", "/proc/x.tar.gz"], "not-written"),
    ],
)
def test_what_cannot_be_done(state, arguments, code):
    """One sentence on what happened and what to do, status 1, no trace, and the state as it was."""
    before = replaced(state)
    refused = run(state, *arguments, "--json")
    assert refused.returncode == 1
    if code is None:  # refused by the command line itself
        assert b"--yes" in refused.stderr
    else:
        assert json.loads(refused.stdout)["code"] == code
    assert b"Traceback" not in refused.stderr
    assert replaced(state) == before


@pytest.mark.parametrize("command", [("restore", "--yes"), ("verify",)])
def test_an_unknown_name_makes_no_folder(tmp_path, command):
    home = Home.at(tmp_path / "empty")
    refused = run(home, *command, "nothing.tar.gz", "--json")
    assert json.loads(refused.stdout)["code"] == "not-found"
    assert not home.root.exists()


@pytest.mark.parametrize("command", ["create", "list"])
def test_a_folder_without_a_state(tmp_path, command):
    """There is nothing to back up, and none is made up."""
    refused = run(Home.at(tmp_path / "empty"), command, "--json")
    assert refused.returncode == 1
    told = json.loads(refused.stdout)
    assert told["code"] == "nothing-to-back-up"
    assert str(tmp_path / "empty") in told["message"]
    assert not (tmp_path / "empty").exists()


def test_a_command_finishes_what_a_killed_restore_had_decided(decided):
    """`ingot profile` sees the new state, not the old one that is about to be replaced."""
    listed = subprocess.run(
        [sys.executable, "-m", "appliance.cli", "profile", "list"],
        env={**os.environ, "INGOT_HOME": str(decided.root)},
        capture_output=True,
        text=True,
    )
    assert "other" in listed.stdout
    assert not (decided.root / interrupted_restore.PENDING).exists()


def test_a_start_finishes_what_a_killed_restore_had_decided(decided):
    """Before the engine is started, and before anybody is let in."""
    console = subprocess.Popen(
        [sys.executable, "-m", "appliance.cli", "up", "--no-engine", "--port", str(free_port())],
        env={**os.environ, "INGOT_HOME": str(decided.root)},
        stdout=subprocess.PIPE,
    )
    assert b"Console" in console.stdout.readline()
    end(console)
    assert rows(decided)["users"][0][1] == "other-admin"
    assert b"other" in decided.active_profile.read_bytes()
    assert not (decided.root / interrupted_restore.PENDING).exists()


def test_what_a_backup_is_without_ingot(state):
    """An ordinary gzipped tar: what it is stands first, the checksums last."""
    with tarfile.open(back_up(state)) as archive:
        names = archive.getnames()
        manifest = json.loads(archive.extractfile("manifest.json").read())
    assert (names[0], names[-1]) == ("backup.json", "manifest.json")
    assert {"format", "ingot", "schema", "made", "files"} <= manifest.keys()
    assert {file["path"] for file in manifest["files"]} == set(names[1:-1])
