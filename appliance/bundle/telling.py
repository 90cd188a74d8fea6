"""How the commands tell what went wrong: one line, and the exit status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec

from appliance.bundle.errors import BundleError, UntrustedError
from appliance.checkpoint.errors import CheckpointError


@contextmanager
def told(as_json: bool = False) -> Iterator[None]:
    """Turn what can go wrong into one line and exit status 1; 3 where only the trust is missing."""
    try:
        yield
    except (BundleError, CheckpointError, OSError) as error:
        status = 3 if isinstance(error, UntrustedError) else 1
        if as_json:
            click.echo(msgspec.json.encode({"whole": status == 3, "error": str(error)}))
            raise SystemExit(status) from error
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(status) from error
