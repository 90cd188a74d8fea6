"""What the commands that ask a server have in common: the API key, numbers, and the files of a report."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from appliance.given_file import read_given

KEY: Final = "INGOT_API_KEY"
MOST_KEY_BYTES: Final = 4096
STDOUT: Final = Path("-")
SOME_FAILED: Final = 1
NOT_MEASURABLE: Final = 2
INTERRUPTED: Final = 130

OutFile = click.Path(dir_okay=False, writable=True, path_type=Path)


def positive(_context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):  # also false for NaN
        raise click.BadParameter(f"{value:g} is out of range; use a number above 0.", param=parameter)
    return value


def read_key(key_file: Path | None) -> str:
    """That of the file, or of the environment; "" for none. Raises click.UsageError."""
    if key_file is None:
        key, source = os.environ.get(KEY, "").strip(), KEY
    else:
        source = str(key_file)
        try:
            raw = read_given(key_file, MOST_KEY_BYTES)
        except OSError as error:
            raise click.UsageError(f"--key-file {key_file} cannot be read: {error.strerror}.") from None
        key = raw.decode(errors="replace").strip()
        if not key:
            raise click.UsageError(f"--key-file {key_file} is empty: put the API key into it.")
    if not key.isascii() or not key.isprintable() or " " in key or len(key) > MOST_KEY_BYTES:
        raise click.UsageError(f"{source} holds no valid API key: use one line of visible ASCII characters.")
    return key


def check_out_files(json_file: Path | None, html_file: Path | None) -> None:
    """Before the work whose report they are to hold. Raises click.UsageError."""
    if html_file == STDOUT:
        raise click.UsageError("--html - is not possible: give the name of a file.")
    if json_file is not None and html_file is not None and json_file.resolve() == html_file.resolve():
        raise click.UsageError(f"--json and --html both name {html_file}: give two names.")
    for file in (json_file, html_file):
        if file is not None and file != STDOUT and not os.access(file.parent, os.W_OK):
            raise click.UsageError(f"{file} cannot be written: {file.parent} is not a writable folder.")


def publish(
    text: str, show: Callable[[], None], page: Callable[[], str], json_file: Path | None, html_file: Path | None
) -> None:
    """A report: on the terminal first, which cannot be full, and then into the files that were asked for.

    `text` is the report as JSON; where `json_file` is a dash, standard output gets it and nothing else. Otherwise
    `show` prints the report for people. `page` renders it as HTML. Raises click.ClickException.
    """
    if json_file == STDOUT:
        click.echo(text, nl=False)
    else:
        show()
    if json_file is not None and json_file != STDOUT:
        _save(json_file, text)
    if html_file is not None:
        _save(html_file, page())


def _save(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}.") from None
    click.echo(f"Wrote {file}", err=True)
