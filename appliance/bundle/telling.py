"""How the commands report errors: one line, and the exit status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec

from appliance.bundle.errors import BundleError, UntrustedError
from appliance.checkpoint.errors import CheckpointError


@contextmanager
def told(as_json: bool = False) -> Iterator[None]:
    """Report errors in one line with exit status 1, or 3 if only the trust is missing."""
    try:
        yield
    except (BundleError, CheckpointError, OSError) as error:
        status = 3 if isinstance(error, UntrustedError) else 1
        if as_json:
            click.echo(
                msgspec.json.encode(
                    {"whole": status == 3, "code": getattr(error, "code", "not-read"), "error": str(error)}
                )
            )
            raise SystemExit(status) from error
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(status) from error
