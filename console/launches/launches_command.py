"""`ingot launches`: the launch pages' content in a terminal, from the folders, without a server."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from appliance.home import Home
from appliance.home_lock import may_be_held
from appliance.launches.catalogue import Catalogue
from appliance.launches.folder import LaunchFolder
from appliance.launches.process_ends import in_order
from appliance.launches.states import under_way
from console import formats
from console.launches.given import find_launch, launch_numbers
from console.launches.outcome import cause, outcome, sentence

LISTED = 20
GAP = "  "


class Row(NamedTuple):
    """A listed launch; the fields' names are the columns'."""

    launch: str
    number: str
    profile: str
    outcome: str
    started: str
    cause: str


@click.group()
def launches() -> None:
    """List launches, show one, and export one to send to support."""


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
    numbers = launch_numbers(catalogue.home)
    if as_json:
        for record in records:
            numbered = {"number": numbers.get(record.id), **msgspec.to_builtins(record)}
            click.echo(msgspec.json.encode(numbered).decode())
        return
    rows = []
    for record in records:
        end = outcome(record, runs=under_way(record, current, engine_runs=engine_runs))
        what = f"{record.profile} {record.revision}".rstrip()
        why = " ".join(cause(record).split()) if end.went_wrong else ""
        number = numbers.get(record.id, "")
        rows.append(Row(record.id, str(number), what, end.word, formats.exact(record.started), why))
    _print(rows, shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize)


def _print(rows: list[Row], columns: int) -> None:
    """One line a launch. Where one would be longer than the terminal's `columns`, causes are on lines of their own."""
    header = Row(*Row._fields)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    beside = sum(widths) + len(GAP) * (len(widths) - 1) <= columns
    click.secho(_line(header if beside else header._replace(cause=""), widths), bold=True)
    for row in rows:
        click.echo(_line(row if beside else row._replace(cause=""), widths))
        if row.cause and not beside:
            click.echo(textwrap.fill(row.cause, columns, initial_indent=GAP, subsequent_indent=GAP))


def _line(row: Row, widths: list[int]) -> str:
    return GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


@launches.command("show")
@click.argument("launch", metavar="ID|NUMBER|latest")
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON.")
def show(launch: str, as_json: bool) -> None:
    """Show one launch: outcome, phases, cause and fix, and how its processes ended."""
    from appliance.diagnosis import printing  # late: rich is slow to import

    catalogue = Catalogue(Home.from_environment())
    record = _folder(catalogue, launch).read().record
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(record)).decode())
        return
    runs = under_way(record, catalogue.current(), engine_runs=may_be_held(catalogue.home.lock))
    click.secho(f"{record.id}  {record.profile} {record.revision}".rstrip(), bold=True)
    click.echo(f"{sentence(record, runs=runs)} Started {formats.exact(record.started)}.")
    for phase in record.phases:
        click.echo(f"  {phase.phase}: {phase.outcome or 'running'}, {formats.seconds(phase.seconds)}")
    if record.diagnosis is not None:
        click.echo()
        printing.show(record.diagnosis)
    printing.show_ends(in_order(record.process_ends))


@launches.command("export")
@click.argument("launch", metavar="ID|NUMBER|latest")
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
    folder = find_launch(catalogue, launch)
    if folder is None:
        known = ", ".join(catalogue.ids()[:5]) or "none yet"
        raise click.ClickException(f"There is no launch {launch!r} in {catalogue.home.launches}. The latest: {known}.")
    return folder
