"""The `ingot` command. Its commands come from the entry-point group `ingot.commands`, so that each package adds its
own; a command's module is imported only when that command is run."""

from __future__ import annotations

import os
import shlex
from importlib import metadata
from pathlib import Path
from typing import Final

import click

from appliance import __version__, recent_homes
from appliance.home import Home, usual_folders

# Commands that use the state folder of an appliance that is there already.
OF_THE_STATE: Final = {
    "backup", "bundle", "cast", "check", "diagnose", "explain", "hardware", "launches", "logs", "profile", "selftest",
}  # fmt: skip


class EntryPointGroup(click.Group):
    """A click group whose commands are entry points."""

    def __init__(self, *args: object, group: str, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._group = group

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({point.name for point in metadata.entry_points(group=self._group)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for point in metadata.entry_points(group=self._group, name=cmd_name):
            command = point.load()
            assert isinstance(command, click.Command), f"{point.value} is not a command"
            return command
        return None


@click.group(cls=EntryPointGroup, group="ingot.commands", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ingot")
@click.pass_context
def main(context: click.Context) -> None:
    """Run a model on this machine, and know within seconds why it does not run."""
    if context.invoked_subcommand in OF_THE_STATE and not os.environ.get("INGOT_HOME"):
        _find_the_appliance()


def _find_the_appliance() -> None:
    """Nobody named a state folder: take that of the running appliance of this installation, or else the usual one. Say
    so wherever the person who asks may expect another."""
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


if __name__ == "__main__":
    main(prog_name="ingot")
