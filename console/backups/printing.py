"""What `ingot backup` prints: results as sentences on standard output; progress on standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from appliance.home import Home
from appliance.home_lock import is_held
from console import formats
from console.backups.after_restore import AfterRestore
from console.backups.archive_format import Contents
from console.backups.create import Made, Report
from console.backups.folder import Backup
from console.backups.restore import Checked, Restored

SHOW_EVERY_S = 0.2
WIDE = 200
"""Columns if the output is not a terminal."""


def as_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def failure(code: str, message: str, remedy: str, in_json: bool) -> None:
    if in_json:
        click.echo(as_json({"code": code, "message": message, "remedy": remedy}))
    else:
        click.echo(f"Error: {message} {remedy}", err=True)


@contextlib.contextmanager
def progress(verb: str) -> Iterator[Report]:
    """One line that is rewritten, if standard error is a terminal."""
    shown = 0.0
    is_terminal = sys.stderr.isatty()

    def report(done: int, total: int) -> None:
        nonlocal shown
        if is_terminal and time.monotonic() - shown >= SHOW_EVERY_S:
            shown = time.monotonic()
            share = formats.percent(min(1.0, done / total)) if total else ""
            click.echo(f"\r\x1b[K{verb}: {formats.gib(done)} of {formats.gib(total)} {share}", nl=False, err=True)

    try:
        yield report
    finally:
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)


def made(result: Made) -> dict[str, Any]:
    return {
        "path": str(result.path),
        "size": result.size,
        "files": len(result.manifest.files),
        "left_out": result.left_out,
        **{name: getattr(result.manifest, name) for name in ("ingot", "schema", "made", "with_launches", "contents")},
    }


def made_text(result: Made) -> str:
    text = f"{result.path} ({formats.gib(result.size)}): {in_words(result.manifest.contents)}."
    if not result.manifest.with_launches:
        text += " Launch logs are not included."
    if result.left_out:
        text += f"\nNot included, since they are not state files: {', '.join(result.left_out[:5])}."
    return text


def in_words(contents: Contents) -> str:
    """`2 profiles with 7 revisions (active: p r3), 1 account (admin), 2 API keys, 41 launches`."""
    parts = [
        f"{_counted(contents.profiles, 'profile')} with {_counted(contents.revisions, 'revision')}"
        + (f" (active: {contents.active})" if contents.active else ""),
        _counted(len(contents.accounts), "account")
        + (f" ({', '.join(contents.accounts)})" if contents.accounts else ""),
        _counted(contents.api_keys, "API key"),
        _counted(contents.launches, "launch", "launches"),
    ]
    if contents.trusted_keys:
        parts.append(_counted(len(contents.trusted_keys), "trusted key"))
    return ", ".join(parts)


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def checked_text(result: Checked) -> str:
    made_by = f"created by Ingot {result.ingot} on {formats.exact(result.made)}, " if result.ingot else ""
    migrates = " (a restore will upgrade it)" if result.migrates else ""
    whole = f"{result.name} is intact: {made_by}{_counted(result.files, 'file')}"
    return f"{whole}, database schema {result.schema}{migrates}.\nIt contains {in_words(result.contents)}."


def confirmed(name: str, after: AfterRestore, home: Home) -> bool:
    """Ask for confirmation."""
    click.echo(f"Afterwards, {home.root} holds {in_words(after.contents)}.", err=True)
    for what, names in (("Accounts", after.lost_accounts), ("API keys", after.lost_keys)):
        if names:
            click.echo(f"{what} that will be gone: {', '.join(names)}.", err=True)
    if after.no_key_left:
        click.echo(f"No API key will be left. {_without_keys(after)}", err=True)
    question = f"Replace the profiles, keys and accounts there with those of {name}?"
    return click.confirm(question, err=True)


def _without_keys(after: AfterRestore) -> str:
    if after.key_required:
        return "The API will refuse every request until you create one."
    return "The API does not require one."


def restored_text(result: Restored, home: Home) -> str:
    accounts = ", ".join(result.accounts)
    lines = [
        f"Restored {result.name}. Active profile: {result.active or 'none'}.",
        f"Added {_counted(result.launches, 'launch', 'launches')}"
        + (f"; {result.here_already:,} already existed and were left unchanged." if result.here_already else "."),
        f"Sign in as: {accounts}." if accounts else "There is no account yet: `ingot up` will print a set-up link.",
    ]
    if result.migrated:
        lines.append(f"The database was upgraded from schema {result.schema}.")
    if result.revoked:
        lines.append(f"API keys revoked since the backup stay revoked: {', '.join(result.revoked)}.")
    if result.kept:
        lines.append(f"The previous state is in {home.root / 'backups' / result.kept}.")
    if is_held(home.lock):
        lines.append("The running engine still uses the previous profile. Restart it to use the restored one.")
    return "\n".join(lines)


def table(backups: Sequence[Backup]) -> None:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("name", "made", "size", "ingot"):
        shown.add_column(name, no_wrap=True)
    shown.add_column("active")
    shown.add_column("launches", justify="right")
    for backup in backups:
        summary = backup.summary
        if summary is None:
            holds = [backup.problem or "(database only)", ""]
        else:
            holds = [
                summary.contents.active,
                f"{summary.contents.launches:,}" if summary.with_launches else "not included",
            ]
        version = summary.ingot if summary else ""
        shown.add_row(backup.name, formats.exact(backup.made), formats.gib(backup.size), version, *holds)
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDE).print(shown)
