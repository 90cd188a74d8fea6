"""`ingot logs`: the engine's log in a terminal, read from the launch's folder. No server is needed for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import click
import msgspec

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.launches.folder import LOG
from console.launches.given import find_launch
from console.logs import ansi
from console.logs.classify import Classifier, time_of
from console.logs.tail import Tail

POLL_S = 0.2


class JsonLine(msgspec.Struct, frozen=True):
    """A line as `--json` writes it."""

    launch: str
    number: int
    level: str
    process: str
    time: str | None
    text: str


def _line_count(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    if value == "all":
        return None
    if value.isascii() and value.isdigit() and len(value) <= 10:
        return int(value)
    raise click.BadParameter(f"{value!r} is not a whole number or 'all'.")


@click.command()
@click.option(
    "--launch",
    "launch_id",
    metavar="ID|NUMBER|latest",
    help="The launch whose log to print.  [default: the current one]",
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines, across restarts, until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    metavar="N|all",
    default="200",
    show_default=True,
    callback=_line_count,
    help="Start with the last N lines, or with all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, complete and without colours.")
def logs(launch_id: str | None, follow: bool, lines: int | None, as_json: bool) -> None:
    """Show the engine's log."""
    home = Home.from_environment()
    catalogue = Catalogue(home)
    if launch_id is None:
        current = catalogue.current()
    elif (folder := find_launch(catalogue, launch_id)) is None:
        raise click.ClickException(_no_such_launch(launch_id, catalogue))
    else:
        current = folder.id
    if current is None and not follow:
        raise click.ClickException(f"No launches in {home.launches} yet. Start one with `ingot up`.")
    show = _printer(as_json)
    try:
        if not follow:
            assert current is not None
            if not (home.launch(current) / LOG).exists():
                raise click.ClickException(_no_log(current, catalogue))
            tail = Tail(home.launch(current) / LOG, lines)
            _show(tail, current, show)
            _show_unfinished(tail, current, show)
        else:
            _follow(catalogue, current, lines, show, fixed=launch_id is not None)
    except KeyboardInterrupt:
        sys.exit(130)


Show = Callable[[str, int, bytes], None]


def _follow(catalogue: Catalogue, current: str | None, lines: int | None, show: Show, *, fixed: bool) -> None:
    if current is None:
        click.echo(f"Waiting for the first launch in {catalogue.home.launches}.", err=True)
    tail = Tail(catalogue.home.launch(current) / LOG, lines) if current else None
    while True:
        told = _show(tail, current, show) if tail and current else False
        newest = current if fixed else catalogue.current()
        if not told and newest != current and newest is not None:
            if tail and current:
                _show_unfinished(tail, current, show)
            click.echo(f"-- launch {newest} --", err=True)
            current, tail = newest, Tail(catalogue.home.launch(newest) / LOG, None)
        elif not told:
            time.sleep(POLL_S)


def _show(tail: Tail, launch: str, show: Show) -> bool:
    told = False
    for number, line in tail.new_lines():
        show(launch, number, line)
        told = True
    return told


def _show_unfinished(tail: Tail, launch: str, show: Show) -> None:
    if (rest := tail.unfinished()) is not None:
        show(launch, *rest)


def _printer(as_json: bool) -> Show:
    if not as_json:
        # click strips colours itself where the output is no terminal, but only those it knows.
        clean = ansi.coloured if sys.stdout.isatty() else ansi.plain
        return lambda launch, number, line: click.echo(clean(line.decode("utf-8", "replace")))
    classifier = Classifier()

    def show_json(launch: str, number: int, line: bytes) -> None:
        kind = classifier.feed(line)
        text = ansi.plain(line.decode("utf-8", "replace"))
        row = JsonLine(launch, number, kind.level.name.lower(), kind.process, time_of(text), text)
        click.echo(msgspec.json.encode(row).decode())

    return show_json


def _no_such_launch(launch_id: str, catalogue: Catalogue) -> str:
    known = catalogue.ids()[:5]
    if not known:
        return f"There is no launch {launch_id!r}: {catalogue.home.launches} has none yet."
    return f"There is no launch {launch_id!r} in {catalogue.home.launches}. The latest: {', '.join(known)}."


def _no_log(launch_id: str, catalogue: Catalogue) -> str:
    folder = catalogue.find(launch_id)
    record = folder.record() if folder else None
    why = f" It is {record.state}" + (f": {record.reason}" if record.reason else ".") if record else ""
    older = next((name for name in catalogue.ids() if (catalogue.home.launch(name) / LOG).exists()), None)
    then = f" For the latest log, run `ingot logs --launch {older}`." if older else ""
    return f"Launch {launch_id} started no engine, so it has no log.{why}{then}"
