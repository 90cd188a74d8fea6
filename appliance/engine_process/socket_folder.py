"""A folder for an engine's Unix sockets: only this user can open them, and its path leaves room for their names."""

from __future__ import annotations

import tempfile
from pathlib import Path

# The system's limit for the path of a Unix socket is 107 bytes.
LONGEST_FOLDER = 90


def make_socket_folder(prefix: str) -> Path:
    """In the system's temporary folder, or in /tmp where that one's path is too long."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    if len(str(folder)) <= LONGEST_FOLDER:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
