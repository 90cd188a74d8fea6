"""One writer at a time for a folder that models or packs are put into."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from appliance.bundle.errors import BundleError


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Held while something is put into `folder`: two at once would write to the same hidden folder in it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BundleError("busy", f"another `ingot` is writing to {folder}; wait until it has finished") from error
        yield
    finally:
        os.close(fd)
