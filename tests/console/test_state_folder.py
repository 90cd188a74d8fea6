"""Which state folder `ingot` reads: INGOT_HOME's, its own checkout's, or the user's; and that it names another one that
has a running appliance."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from appliance import home as home_module
from appliance.cli import main
from appliance.home import Home


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A checkout without state, and a user's data folder."""
    checkout, data = tmp_path / "checkout", tmp_path / "data"
    checkout.mkdir()
    monkeypatch.setattr(home_module, "CHECKOUT", checkout)
    monkeypatch.delenv("INGOT_HOME")
    monkeypatch.delenv("INGOT_MODELS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    return checkout / ".ingot", data / "ingot"


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


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
    of_checkout.mkdir()
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
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "named"))
    with other.console_lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert ask("profile", "list").stderr == ""
