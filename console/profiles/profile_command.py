"""`ingot profile`: the console's profiles from a terminal, on the same database and through the same service.

What the commands do stands in `terminal_work`, what they print in `printing`; both are imported only when a command
runs, so that `--help` is at once.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from console.profiles.activator import Activated
    from console.profiles.terminal_work import Work
    from console.profiles.transfer import Planned

T = TypeVar("T")

EXIT_CODES = """
\b
Exit status:
  0  done
  1  not done: the message says why and what to do
  2  invalid usage
  3  preflight found errors: nothing was changed
  4  requests are running: nothing was changed; add --when-finished or --now
"""


class Revision(click.ParamType[int]):
    """A revision's number, with or without the r that pages and launches write before it."""

    name = "revision"

    def convert(self, value: str | int, parameter: click.Parameter | None, context: click.Context | None) -> int:
        digits = str(value).removeprefix("r")
        if not digits.isdecimal():
            self.fail(f"{value!r} is not a revision. Give its number, such as 7 or r7.", parameter, context)
        return int(digits)


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
revision_option = click.option(
    "-r", "--revision", metavar="N", type=Revision(), help="Revision N (such as 7 or r7) instead of the latest."
)


when_option = click.option(
    "--when-finished/--now",
    "finished",
    default=None,
    help="Let running requests finish first (5 minutes at most), or end them.  [default: ask if any are running]",
)


@click.group(epilog=EXIT_CODES)
def profile() -> None:
    """List, show, import, export, activate and roll back profiles."""


@profile.command("list", epilog=EXIT_CODES)
@as_json_option
def list_(as_json: bool) -> None:
    """List every profile, the active one first."""
    from console.profiles import printing
    from console.profiles.terminal_work import running_launch

    summaries = _done(lambda work: work.summaries(), as_json)
    _say(summaries, as_json, lambda them: printing.profiles(them, running_launch()))


@profile.command(epilog=EXIT_CODES)
@click.argument("name")
@revision_option
@as_json_option
def show(name: str, revision: int | None, as_json: bool) -> None:
    """Show a profile: one revision's settings, and every revision with how its launches went."""
    from console.profiles import printing
    from console.profiles.terminal_work import running_launch

    result = _done(lambda work: work.show(name, revision), as_json)
    _say(result, as_json, lambda it: printing.profile(it.revision, it.profile, running_launch()))


@profile.command(epilog=EXIT_CODES)
@click.argument("name")
@revision_option
@click.option("--json", "as_json", is_flag=True, help="Write JSON instead of YAML.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write to FILE.")
def export(name: str, revision: int | None, as_json: bool, output: str | None) -> None:
    """Write a profile as YAML: only what differs from the defaults, as `import` reads it."""
    text = _done(lambda work: work.export(name, revision, "json" if as_json else "yaml"), as_json)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror}. Choose another file.") from error


@profile.command("import", epilog=EXIT_CODES)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(dir_okay=False, allow_dash=True))
@click.option("-y", "--yes", is_flag=True, help="Import without asking.")
@as_json_option
def import_(files: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Import profiles from YAML or JSON files (`-` is the standard input).

    Says first what would be made and changed. On a terminal it then asks; elsewhere nothing is saved without --yes.
    A file that cannot be a profile stops the import as a whole.
    """
    from console.profiles import printing

    texts = [(name if name != "-" else "standard input", _read(name)) for name in files]
    asks = sys.stdin.isatty() and not as_json and "-" not in files

    def confirm(planned: list[Planned]) -> bool:
        if not as_json:
            printing.plan(planned)
        useful = any(item.does in ("create", "revise") for item in planned)
        refused = any(item.problems for item in planned)
        return useful and not refused and (yes or (asks and click.confirm("Import?", default=True)))

    result = _done(lambda work: work.import_(texts, confirm), as_json, creates=True)
    if any(item.problems for item in result.planned):
        if as_json:
            click.echo(printing.as_json(result))
        raise SystemExit(1)
    _say(result, as_json, lambda it: printing.imported(it.planned, it.saved))


@profile.command(epilog=EXIT_CODES)
@click.argument("name")
@revision_option
@click.option(
    "--anyway",
    is_flag=True,
    help="Despite preflight errors that may pass, such as memory in use; the launch checks again.",
)
@when_option
@as_json_option
def activate(name: str, revision: int | None, anyway: bool, finished: bool | None, as_json: bool) -> None:
    """Make a revision the active one and restart the engine with it.

    The running console does it. Where none runs, the engine takes the revision at its next start.
    """
    from console.profiles import printing

    def do(when: str) -> Activated:
        return _done(lambda work: work.activate(name, revision, anyway=anyway, when=when), as_json)

    _say(_decided(do, finished, as_json), as_json, printing.activated)


@profile.command(epilog=EXIT_CODES)
@when_option
@as_json_option
def rollback(finished: bool | None, as_json: bool) -> None:
    """Activate the last revision that became ready, other than the active one."""
    from console.profiles import printing

    def do(when: str) -> Activated:
        return _done(lambda work: work.roll_back(when=when), as_json)

    _say(_decided(do, finished, as_json), as_json, printing.activated)


def _decided(do: Callable[[str], Activated], finished: bool | None, as_json: bool) -> Activated:
    """Run `do` with the chosen option; on a terminal, ask if requests are running."""
    from console.profiles.errors import Undecided

    if finished is not None:
        return do("when-finished" if finished else "now")
    try:
        return do("")
    except Undecided as error:
        waits = click.confirm(f"{error.message} Let them finish first?", default=True, err=True)
        return do("when-finished" if waits else "now")


def _read(name: str) -> bytes:
    """One byte more than the limit is enough for the parser to refuse it."""
    from appliance.given_file import read_given
    from appliance.profile.text import MAX_BYTES

    try:
        return sys.stdin.buffer.read(MAX_BYTES + 1) if name == "-" else read_given(Path(name), MAX_BYTES)
    except OSError as error:
        raise click.ClickException(
            f"{name} cannot be read: {error.strerror}. Check its name and permissions."
        ) from error


def _done(do: Callable[[Work], Awaitable[T]], as_json: bool, *, creates: bool = False) -> T:
    """The result of the work; failures are reported and end the command."""
    from console.profiles.terminal_work import failures_told, working

    with failures_told(as_json=as_json, asks=sys.stdin.isatty() and not as_json):
        return working(do, creates=creates)


def _say(result: T, as_json: bool, to_people: Callable[[T], None]) -> None:
    if as_json:
        from console.profiles import printing

        click.echo(printing.as_json(result))
    else:
        to_people(result)
