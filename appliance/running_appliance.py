"""Which state folder a command uses."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from appliance import recent_homes
from appliance.home import Home, usual_folders


def find_the_appliance() -> None:
    """Where nobody named a state folder: take that of the running appliance of this installation, or else the usual
    one. Say so wherever the person who asks may expect another."""
    if os.environ.get("INGOT_HOME"):
        return
    usual = Home.from_environment().root
    if _runs_on(usual):
        return
    recent = recent_homes.recent()
    running = next((folder for folder in recent if _runs_on(folder)), None)
    if running is not None:
        os.environ["INGOT_HOME"] = str(running)
        click.echo(f"Reading the state folder {running}: this installation's appliance is running there.", err=True)
        return
    if other := next((folder for folder in usual_folders() if folder != usual and _runs_on(folder)), None):
        _name_another(usual, other, "An appliance is running on")
    elif recent and recent[0] != usual:
        _name_another(usual, recent[0], "`ingot up` last ran on")


def _name_another(usual: Path, other: Path, what: str) -> None:
    click.echo(f"Reading the state folder {usual}. {what} {other}.", err=True)
    click.echo(f"To use that one: export INGOT_HOME={shlex.quote(str(other))}", err=True)


def _runs_on(folder: Path) -> bool:
    """Whether a console or an engine runs on that state folder; False where this user may not look."""
    from appliance.home_lock import is_held  # late, as most commands do not ask

    home = Home.at(folder)
    try:
        return is_held(home.console_lock) or is_held(home.lock)
    except PermissionError:
        return False
