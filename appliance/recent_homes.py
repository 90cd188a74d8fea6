"""Which state folders `ingot up` of this installation ran on: kept in its venv, so that the other commands find an
appliance that was started with `INGOT_HOME` in another terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from appliance.home import write_atomically

FILE = Path(sys.prefix) / "ingot-state-folders"
"""One folder a line, the latest first."""
KEPT = 8


def note(folder: Path) -> None:
    """Put `folder` first. Does nothing where the installation cannot be written, or is the system's Python."""
    if sys.prefix == sys.base_prefix:
        return
    folders = [folder, *(other for other in recent() if other != folder)]
    with contextlib.suppress(OSError):
        write_atomically(FILE, b"".join(os.fsencode(one) + b"\n" for one in folders[:KEPT]))


def recent() -> list[Path]:
    """Those that still exist, the latest first."""
    try:
        lines = FILE.read_bytes().splitlines()
    except OSError:
        return []
    folders = [Path(os.fsdecode(line)) for line in lines if line.startswith(b"/")]
    return [folder for folder in folders if folder.is_dir()]
