"""`ingot launches`: the launch pages' content in a terminal, from the folders, without a server."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from appliance.home import Home
from appliance.home_lock import may_be_held
from appliance.launches.catalogue import Catalogue
from appliance.launches.folder import LaunchFolder
from console import formats
from console.launches.outcome import cause, outcome, under_way

LATEST = "latest"
LISTED = 20
WIDE = 200
"""Columns if the output is not a terminal."""


@click.group()
def launches() -> None:
    """List launches, and export one to send to support."""


@launches.command("list")
@click.option(
    "-n", "--number", "count", type=click.IntRange(min=1), default=LISTED, show_default=True, help="How many to list."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record per line.")
def list_(count: int, as_json: bool) -> None:
    """List the last launches, newest first."""
    catalogue = Catalogue(Home.from_environment())
    current = catalogue.current()
    engine_runs = may_be_held(catalogue.home.lock)
    records = catalogue.records()[:count]
    if not records:
        nothing = f"No launches in {catalogue.home.launches} yet. Start one with `ingot up`."
        if not as_json:
            raise click.ClickException(nothing)
        click.echo(nothing, err=True)
    if as_json:
        for record in records:
            click.echo(msgspec.json.encode(record).decode())
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("launch", "profile", "outcome", "started"):
        table.add_column(name, no_wrap=True)
    table.add_column("cause")
    for record in records:
        end = outcome(record, runs=under_way(record, current, engine_runs=engine_runs))
        what = f"{record.profile} {record.revision}".rstrip()
        table.add_row(record.id, what, end.word, formats.exact(record.started), cause(record) if end.went_wrong else "")
    terminal = Console(highlight=False, markup=False)
    terminal.print(table, width=None if terminal.is_terminal else WIDE)


@launches.command("export")
@click.argument("launch", metavar="ID|latest")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="A file that does not exist yet, or - for standard output.  [default: ingot-launch-ID.zip]",
)
def export_(launch: str, out: Path | None) -> None:
    """Write one launch to a zip file for support: log, events, profile, effective values, hardware, findings,
    diagnosis, stacks, versions. Secrets are removed; its README.txt says which."""
    from console.hardware.machines import Machines  # late: slow to import
    from console.launches.export import export, file_name
    from console.profiles.inspection import Inspector
    from console.settings import ConsoleConfig, SettingError

    home = Home.from_environment()
    folder = _folder(Catalogue(home), launch)
    try:
        config = ConsoleConfig.from_environment(home)
    except SettingError as error:
        raise click.ClickException(str(error)) from error
    machines = Machines(home, lambda: config.engine_url)
    content = export(home, folder, machines, Inspector(home, machines=machines))
    if str(out) == "-":
        for chunk in content:
            sys.stdout.buffer.write(chunk)
        return
    path = out or Path(file_name(folder.id))
    try:
        with path.open("xb") as file:
            for chunk in content:
                file.write(chunk)
    except FileExistsError:
        raise click.ClickException(f"{path} already exists. Choose another file with --out.") from None
    except OSError as error:
        path.unlink(missing_ok=True)
        raise click.ClickException(f"{path} could not be written: {error.strerror}.") from error
    size = formats.gib(path.stat().st_size)
    click.echo(f"{path} ({size}). Known kinds of secrets were removed; its README.txt says which.")


def _folder(catalogue: Catalogue, launch: str) -> LaunchFolder:
    name = (catalogue.current() or "") if launch == LATEST else launch
    folder = catalogue.find(name) if name else None
    if folder is None:
        known = ", ".join(catalogue.ids()[:5]) or "none yet"
        raise click.ClickException(f"There is no launch {launch!r} in {catalogue.home.launches}. The latest: {known}.")
    return folder
