"""The `ingot` command. Its commands come from the entry-point group `ingot.commands`, so that each package adds its
own; a command's module is imported only when that command is run."""

from __future__ import annotations

import os
import shlex
from importlib import metadata
from typing import Final

import click

from appliance import __version__
from appliance.home import Home, usual_folders

# Commands that read what an appliance wrote into its state folder.
OF_THE_STATE: Final = {"backup", "check", "diagnose", "explain", "launches", "logs", "profile", "selftest"}


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
        _say_where_it_runs()


def _say_where_it_runs() -> None:
    """Nobody named a state folder, so the usual one is read. If the appliance that runs here is in another, say so."""
    home = Home.from_environment()
    others = [folder for folder in usual_folders() if folder != home.root and _runs_on(Home.at(folder))]
    if others and not _runs_on(home):
        click.echo(f"Reading the state folder {home.root}. An appliance is running on {others[0]}.", err=True)
        click.echo(f"To use that one: export INGOT_HOME={shlex.quote(str(others[0]))}", err=True)


def _runs_on(home: Home) -> bool:
    """Whether a console or an engine runs on that state folder; False where this user may not look."""
    from appliance.home_lock import is_held  # late, as most commands do not ask

    try:
        return is_held(home.console_lock) or is_held(home.lock)
    except PermissionError:
        return False


if __name__ == "__main__":
    main(prog_name="ingot")
