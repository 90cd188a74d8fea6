"""`ingot backup`: create, list, check and restore backups of the state."""

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
    from console.backups.after_restore import AfterRestore
    from console.backups.restore import Restored

EXIT_CODES = """
\b
Exit status:
  0  done
  1  not done: the message says why and what to do; nothing was changed
  2  invalid usage
  3  a console is running on this state folder (restore only)
"""

STANDARD_INPUT = "-"

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(epilog=EXIT_CODES)
def backup() -> None:
    """Create, list, check and restore backups of the state: profiles, keys, accounts, launches."""


@backup.command(epilog=EXIT_CODES)
@click.option(
    "--out",
    type=click.Path(path_type=Path, allow_dash=True),
    help="A file that does not exist yet, a folder, or - for standard output.  [default: backups/ in the state folder]",
)
@click.option("--without-launches", is_flag=True, help="Leave out launch folders with their logs: much smaller.")
@as_json_option
def create(out: Path | None, without_launches: bool, as_json: bool) -> None:
    """Create a backup. The console and the engine may be running."""
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
    """List the backups in the state folder, newest first."""
    from appliance.home import Home
    from console.backups import printing
    from console.backups.folder import BackupFolder
    from console.backups.snapshot import require_state

    home = Home.from_environment()
    with failures_told(home, as_json):
        folder = BackupFolder(home)
        backups = folder.backups()
        if not backups:
            require_state(home)
            click.echo(f"No backups in {folder.path} yet. Create one with `ingot backup create`.", err=as_json)
        if as_json:
            click.echo(printing.as_json(backups))
        elif backups:
            printing.table(backups)


@backup.command(epilog=EXIT_CODES)
@click.argument("file", metavar="FILE|NAME")
@as_json_option
def verify(file: str, as_json: bool) -> None:
    """Check a whole backup: checksums, versions, database. The state is not changed."""
    from appliance.home import Home
    from console.backups import printing, restore

    home = Home.from_environment()
    with failures_told(home, as_json):
        path = _receive(home) if file == STANDARD_INPUT else _find(home, file)
        _make(home)
        with printing.progress("Checking") as report:
            checked = restore.check(home, path, report)
    _say(checked, printing.checked_text(checked), as_json)


@backup.command("restore", epilog=EXIT_CODES)
@click.argument("file", metavar="FILE|NAME|-")
@click.option("-y", "--yes", is_flag=True, help="Restore without asking.")
@as_json_option
def restore_(file: str, yes: bool, as_json: bool) -> None:
    """Replace the current state with that of a backup.

    Everything is checked first, and the current state is backed up. Existing launches are kept; those of the backup
    are added. While a console is running on the state folder, restore on its Backups page instead.
    """
    from appliance.home import Home

    if not yes and not sys.stdin.isatty():
        raise click.ClickException(
            "Nothing was restored: there is no terminal to ask for confirmation. Add --yes to restore without asking."
        )
    home = Home.from_environment()
    with failures_told(home, as_json):
        path = None if file == STANDARD_INPUT else _find(home, file)
        _make(home)
        restored = _restore(home, path, yes=yes)
    from console.backups import printing

    _say(restored, printing.restored_text(restored, home), as_json)


def _restore(home: Home, path: Path | None, *, yes: bool) -> Restored:
    """None: receive the backup first."""
    from appliance.home_lock import HomeInUseError, OwnerLock
    from console.backups import interrupted_restore, printing, restore

    try:
        lock = OwnerLock(home.console_lock, "ingot backup restore")
    except HomeInUseError as error:
        where = f" at http://{error.owner.host}:{error.owner.port}" if error.owner and error.owner.port else ""
        click.echo(
            f"Error: A console{where} or another restore is using the state folder {home.root}. "
            "Restore on the console's Backups page, or stop it first.",
            err=True,
        )
        raise SystemExit(3) from error
    try:
        interrupted_restore.finish(home)
        path = path or _receive(home)

        def judge(after: AfterRestore) -> None:
            if not yes and not printing.confirmed(path.name, after, home):
                raise click.ClickException("Nothing was restored.")

        with path.open("rb") as raw, printing.progress("Checking") as report:
            return restore.restore(home, raw, path.name, path.stat().st_size, report=report, judge=judge)
    finally:
        lock.release()


def _receive(home: Home) -> Path:
    """A backup from standard input, kept in the state folder."""
    from console.backups.folder import BackupFolder, incoming

    _make(home)
    with incoming(BackupFolder(home), 0) as received:
        for chunk in iter(lambda: sys.stdin.buffer.read(1 << 20), b""):
            received.write(chunk)
        return received.keep()


def _find(home: Home, file: str) -> Path:
    """The file at that path, or the backup of that name in the state folder. Raises BackupError."""
    from console.backups.folder import BackupFolder

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
    """Report failures as a message or JSON, with an exit status."""
    from console.backups import printing
    from console.backups.errors import BackupError
    from console.db.failures import DATABASE_ERRORS, explain

    try:
        yield
    except BackupError as error:
        printing.failure(error.code, error.message, error.remedy, as_json)
        raise SystemExit(1) from error
    except DATABASE_ERRORS as error:
        failure = explain(error, home.database)
        if failure is None:
            raise
        printing.failure("database", failure.message, failure.remedy, as_json)
        raise SystemExit(1) from error
    except OSError as error:
        what = f"{error.filename}: {error.strerror or error}."
        printing.failure("not-read", what, "Check the file and its permissions.", as_json)
        raise SystemExit(1) from error


def _say(value: Any, text: str, as_json: bool) -> None:
    from console.backups import printing

    click.echo(printing.as_json(value) if as_json else text)
