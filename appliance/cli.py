"""The `ingot` command. Its commands come from the entry-point group `ingot.commands`, so that each package adds its
own; a command's module is imported only when that command is run."""

from __future__ import annotations

from importlib import metadata
from typing import Final

import click

from appliance import __version__
from appliance.running_appliance import find_the_appliance

# Commands that always use the state folder of an appliance that is there already; others decide by their options.
OF_THE_STATE: Final = {
    "accept", "backup", "cache", "cast", "check", "diagnose", "explain", "launches", "logs", "profile", "selftest",
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
    if context.invoked_subcommand in OF_THE_STATE:
        find_the_appliance()


if __name__ == "__main__":
    main(prog_name="ingot")
