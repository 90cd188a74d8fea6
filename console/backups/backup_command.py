"""`ingot backup`: make, list, check and restore backups of the state."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from appliance.home import Home
    from console.backups.restore import Restored

EXIT_CODES = """
\b
Exit status:
  0  done
  1  not done; the message says why and what to do, and nothing was changed
  2  the command was not written as it must be
  3  the console runs on this state folder (restore only)
"""

as_json_option = click.option("--json", "as_json", is_flag=True, help="Write one JSON value, for programs.")


@click.group(epilog=EXIT_CODES)
def backup() -> None:
    """Make, list, check and restore backups of the state: database, profiles, keys, accounts, launches."""


@backup.command(epilog=EXIT_CODES)
@click.option(
    "--out",
    type=click.Path(path_type=Path, allow_dash=True),
    help="The file to write, which must not be there yet, or a folder; - for standard output.  "
    "[default: backups/ of the state folder]",
)
@click.option("--without-launches", is_flag=True, help="Leave out the launches' folders with their logs: much smaller.")
@as_json_option
def create(out: Path | None, without_launches: bool, as_json: bool) -> None:
    """Make a backup, whatever runs meanwhile."""
    from appliance.home import Home
    from console.backups import create as making
    from console.backups import printing
    from console.backups.folder import BackupFolder

    home = Home.from_environment()
    with failures_told(home, as_json), printing.progress("Backing up") as report:
        to_stdout = str(out) == "-"
        folder = BackupFolder(home)
        if home.database.exists() and (out is None or to_stdout):
            folder.create()
        made = making.create(
            home,
            folder.path if out is None or to_stdout else out,
            with_launches=not without_launches,
            report=report,
        )
        if to_stdout:
            try:
                with made.path.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
                    sys.stdout.buffer.flush()
            finally:
                made.path.unlink()
            return
    _say(printing.made(made), printing.made_text(made), as_json)


@backup.command("list", epilog=EXIT_CODES)
@as_json_option
def list_(as_json: bool) -> None:
    """List the backups in the state folder, the newest first."""
    from appliance.home import Home
    from console.backups import printing
    from console.backups.folder import BackupFolder

    home = Home.from_environment()
    with failures_told(home, as_json):
        folder = BackupFolder(home)
        backups = folder.backups()
        if as_json:
            click.echo(printing.as_json(backups))
        elif backups:
            printing.table(backups)
        else:
            click.echo(f"There is no backup in {folder.path} yet: make one with `ingot backup create`.")


@backup.command(epilog=EXIT_CODES)
@click.argument("file", metavar="FILE|NAME")
@as_json_option
def verify(file: str, as_json: bool) -> None:
    """Read all of a backup: every checksum, its versions, its database. The state is not touched."""
    from appliance.home import Home
    from console.backups import printing, restore

    home = Home.from_environment()
    with failures_told(home, as_json):
        _make(home)
        path = _path(home, file)
        with printing.progress("Checking") as report:
            checked = restore.check(home, path, report)
    _say(checked, printing.checked_text(checked), as_json)


@backup.command("restore", epilog=EXIT_CODES)
@click.argument("file", metavar="FILE|NAME|-")
@click.option("-y", "--yes", is_flag=True, help="Restore without asking.")
@as_json_option
def restore_(file: str, yes: bool, as_json: bool) -> None:
    """Put the state of a backup in place of the present one.

    Everything is checked first, and the present state is backed up. Launches that are here stay, and those of the
    backup are added. While a console runs on the state folder, restore on its Backups page instead.
    """
    from appliance.home import Home

    if not yes and not sys.stdin.isatty():
        raise click.ClickException("Nothing was restored: nobody can be asked here. Say --yes to restore all the same.")
    home = Home.from_environment()
    with failures_told(home, as_json):
        _make(home)
        restored = _restore(home, file, yes=yes)
    from console.backups import printing

    _say(restored, printing.restored_text(restored, home), as_json)


def _restore(home: Home, file: str, *, yes: bool) -> Restored:
    from appliance.home_lock import HomeInUseError, OwnerLock
    from console.backups import pending, printing, restore

    try:
        lock = OwnerLock(home.console_lock, "ingot backup restore")
    except HomeInUseError as error:
        where = f" at http://{error.owner.host}:{error.owner.port}" if error.owner and error.owner.port else ""
        click.echo(
            f"Error: A console{where} runs on the state folder {home.root}, or another restore does. "
            "Restore on its Backups page, or stop it first.",
            err=True,
        )
        raise SystemExit(3) from error
    try:
        pending.finish(home)
        path = _path(home, file)

        def judge(contents: Any) -> None:
            if not yes and not printing.confirmed(path.name, contents, home):
                raise click.ClickException("Nothing was restored.")

        with path.open("rb") as raw, printing.progress("Checking") as report:
            return restore.restore(home, raw, path.name, path.stat().st_size, report=report, judge=judge)
    finally:
        lock.release()


def _path(home: Home, file: str) -> Path:
    """A file of that path; or else the backup of that name in the state folder; - is received there first."""
    from console.backups.folder import BackupFolder, incoming

    if file == "-":
        with incoming(BackupFolder(home), 0) as received:
            for chunk in iter(lambda: sys.stdin.buffer.read(1 << 20), b""):
                received.write(chunk)
            return received.keep()
    path = Path(file)
    return path if path.is_file() else BackupFolder(home).find(file)


def _make(home: Home) -> None:
    from console.backups.disk_space import not_written

    try:
        home.create()
    except OSError as error:
        raise not_written(home.root, error) from error


@contextlib.contextmanager
def failures_told(home: Home, as_json: bool) -> Iterator[None]:
    """What can go wrong, as a message (or as JSON) and an exit status."""
    from console.backups import printing
    from console.backups.format import BackupError
    from console.db.failures import DATABASE_ERRORS, explain

    try:
        yield
    except BackupError as error:
        printing.failure(error.message, error.remedy, as_json)
        raise SystemExit(1) from error
    except DATABASE_ERRORS as error:
        failure = explain(error, home.database)
        if failure is None:
            raise
        printing.failure(failure.message, failure.remedy, as_json)
        raise SystemExit(1) from error
    except OSError as error:
        printing.failure(
            f"{error.filename}: {error.strerror or error}.", "Look at the file and its permissions.", as_json
        )
        raise SystemExit(1) from error


def _say(value: Any, text: str, as_json: bool) -> None:
    from console.backups import printing

    click.echo(printing.as_json(value) if as_json else text)
