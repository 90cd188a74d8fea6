"""The password of a secret key: typed, from a file, or none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from appliance.bundle.errors import BundleError
from appliance.home import read_file

MAX_BYTES: Final = 4096


def asker(what: str, file: Path | None, *, confirm: bool = False) -> Callable[[], str]:
    """What gives the password for `what` when it is needed."""

    def ask() -> str:
        if file is not None:
            return _from(file)
        if not sys.stdin.isatty():
            raise BundleError(
                "no-password",
                f"{what} needs a password, and there is no terminal to ask for it; add --password-file FILE",
            )
        given: str = click.prompt(f"Password for {what}", hide_input=True, confirmation_prompt=confirm, err=True)
        return given

    return ask


def _from(file: Path) -> str:
    try:
        lines = read_file(file, MAX_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError("not-readable", f"the password file {file} cannot be read: {error}; check it") from error
    if not lines or not lines[0]:
        raise BundleError("no-password", f"the first line of {file} is empty; it must be the password")
    return lines[0]
