"""Which state folder `ingot` reads: INGOT_HOME's, its own checkout's, or the user's; and that it names another one that
has a running appliance."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from appliance import home as home_module
from appliance import recent_homes
from appliance.cli import main
from appliance.home import Home
from console.db.schema import migrate

RECORDING = Path(__file__).parents[1] / "hardware" / "recordings" / "a100-mig.json"
PROFILE = "{name: chat, model: {path: Tiny}}"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A checkout without state, and a user's data folder."""
    checkout, data = tmp_path / "checkout", tmp_path / "data"
    checkout.mkdir()
    monkeypatch.setattr(home_module, "CHECKOUT", checkout)
    monkeypatch.setattr(recent_homes, "FILE", tmp_path / "recent")
    monkeypatch.delenv("INGOT_HOME")
    monkeypatch.delenv("INGOT_MODELS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    return checkout / ".ingot", data / "ingot"


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def with_profiles(folder: Path) -> Home:
    """A state folder on which a console has run."""
    home = Home.at(folder).create()
    migrate(home.database, folder / "backups")
    return home


def test_the_command_reads_what_make_run_of_its_checkout_wrote(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_checkout, of_user = places
    assert Home.from_environment().root == of_user
    of_checkout.mkdir()
    assert Home.from_environment().root == of_checkout
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "named"))
    assert Home.from_environment().root == tmp_path / "named"


@pytest.mark.parametrize("lock", ["console_lock", "lock"])
def test_another_folder_with_a_running_appliance_is_named(places: tuple[Path, Path], lock: str) -> None:
    """On standard error, so that the output for programs stays as it is."""
    of_checkout, of_user = places
    with_profiles(of_checkout)
    other = Home.at(of_user).create()
    quiet = ask("profile", "list", "--json")
    assert quiet.stderr == ""
    with getattr(other, lock).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        told = ask("profile", "list", "--json")
        assert str(of_checkout) in told.stderr
        assert f"INGOT_HOME={of_user}" in told.stderr
        assert json.loads(told.stdout) == json.loads(quiet.stdout)
        nothing = ask("launches", "list")
        assert nothing.exit_code == 1
        assert str(of_checkout) in nothing.stderr
        with Home.at(of_checkout).console_lock.open("w") as own:
            fcntl.flock(own, fcntl.LOCK_EX)
            assert ask("profile", "list").stderr == ""


def test_a_folder_that_was_named_is_read_without_a_word(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = Home.at(places[1]).create()
    with_profiles(tmp_path / "named")
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "named"))
    with other.console_lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert ask("profile", "list").stderr == ""


def test_the_running_appliance_of_this_installation_is_found(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started with INGOT_HOME in another terminal."""
    of_checkout, _ = places
    with_profiles(of_checkout)
    home = with_profiles(tmp_path / "elsewhere")
    CliRunner(env={"INGOT_HOME": str(home.root)}).invoke(main, ["profile", "import", "--yes", "-"], PROFILE)
    recent_homes.note(home.root)
    with home.console_lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = ask("profile", "list", "--json")
        monkeypatch.delenv("INGOT_HOME")
    assert "chat" in [profile["name"] for profile in json.loads(found.stdout)]
    assert str(home.root) in found.stderr


@pytest.mark.parametrize("command", ["hardware --json", "bundle keys --json"])
def test_every_command_uses_the_running_appliance_it_finds(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    home = Home.at(tmp_path / "elsewhere").create()
    recent_homes.note(home.root)
    with home.console_lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = ask(*command.split())
        assert Home.from_environment() == home
        monkeypatch.delenv("INGOT_HOME")
    assert str(home.root) in found.stderr


@pytest.mark.parametrize("command", ["hardware --replay {file}", "bundle key {file} --no-password"])
def test_a_command_that_needs_no_state_folder_speaks_of_none(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    home = Home.at(tmp_path / "elsewhere").create()
    recent_homes.note(home.root)
    with home.console_lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        asked = ask(*command.format(file=RECORDING if "replay" in command else tmp_path / "site").split())
        assert "INGOT_HOME" not in os.environ
    assert asked.stdout
    assert str(home.root) not in asked.stderr


def test_where_nothing_runs_the_folder_of_the_last_appliance_is_named(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_checkout, _ = places
    with_profiles(of_checkout)
    last = Home.at(tmp_path / "last").create()
    recent_homes.note(last.root)
    told = ask("profile", "list")
    assert told.exit_code == 0
    assert str(of_checkout) in told.stderr
    assert f"INGOT_HOME={last.root}" in told.stderr
    recent_homes.note(of_checkout)
    assert ask("profile", "list").stderr == ""


def test_folders_are_noted_once_latest_first_and_only_while_they_exist(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / str(number) for number in range(recent_homes.KEPT + 2)]
    for folder in folders:
        folder.mkdir()
        recent_homes.note(folder)
    recent_homes.note(folders[-2])
    assert recent_homes.recent()[:2] == [folders[-2], folders[-1]]
    assert len(recent_homes.recent()) == recent_homes.KEPT
    folders[-2].rmdir()
    assert recent_homes.recent()[0] == folders[-1]
    monkeypatch.setattr(recent_homes, "FILE", tmp_path / "gone" / "recent")
    recent_homes.note(folders[0])
    assert recent_homes.recent() == []


@pytest.mark.parametrize(
    "command",
    [
        "launches list", "launches list --json", "launches export latest", "logs", "profile list",
        "profile list --json", "profile show x", "profile export x", "backup list", "backup list --json",
        "backup verify x", "diagnose latest", "explain", "profile activate x", "profile rollback",
    ],
)  # fmt: skip
def test_a_command_that_needs_a_state_creates_none(places: tuple[Path, Path], command: str) -> None:
    told = ask(*command.split())
    assert not places[1].exists()
    if command.startswith(("launches list", "profile", "backup list")):
        assert str(places[1]) in told.output


def test_a_launch_runs_only_while_a_front_door_holds_the_folder(places: tuple[Path, Path]) -> None:
    home = Home.at(places[1]).create()
    folder = home.launch("20261120-095145-3f2a")
    folder.mkdir()
    record = {"id": folder.name, "profile": "chat", "started": 1.0, "state": "ready", "ready_after_s": 1.0}
    (folder / "launch.json").write_text(json.dumps(record))
    with home.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "cut off" not in ask("launches", "list").stdout
    assert "cut off" in ask("launches", "list").stdout
