"""How the commands report errors: one line of whole sentences, and the exit status."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click
import msgspec

from appliance.bundle.errors import BundleError, UntrustedError
from appliance.checkpoint.errors import CheckpointError

OPENINGS: Final = frozenset({"a", "another", "key", "part", "parts", "the", "there", "this"})
"""The words of ours with which a message may begin; others are names of files, which keep their spelling."""


def in_sentences(text: str) -> str:
    """`x is damaged; copy it again` -> "x is damaged. Copy it again."."""
    what, *remedies = text.removesuffix(".").split("; ")
    opening = what.partition(" ")[0]
    first = _capitalised(what) if opening in OPENINGS else what
    return ". ".join([first, *map(_capitalised, remedies)]) + "."


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


@contextmanager
def told(as_json: bool = False) -> Iterator[None]:
    """Report errors in one line with exit status 1, or 3 if only the trust is missing."""
    try:
        yield
    except (BundleError, CheckpointError, OSError) as error:
        status = 3 if isinstance(error, UntrustedError) else 1
        what = _of_the_system(error) if isinstance(error, OSError) else str(error)
        if as_json:
            click.echo(
                msgspec.json.encode({"whole": status == 3, "code": getattr(error, "code", "not-read"), "error": what})
            )
            raise SystemExit(status) from error
        click.echo(f"Error: {in_sentences(what)}", err=True)
        raise SystemExit(status) from error


def _of_the_system(error: OSError) -> str:
    """Without the number, which an OSError begins with."""
    why = error.strerror or str(error)
    where = f"{error.filename}: {why}" if error.filename else why
    return f"{where}; free some space, then try again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else where
