"""The room that is left on a disk: asked before something large is written, and again and again while it is. What the
engine and the console write beside it must not run out because of a backup."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from console.backups.format import BackupError
from console.formats import gib

RESERVE_BYTES = 64 << 20
EVERY_BYTES = 16 << 20


def free(folder: Path) -> int:
    """Bytes that may still be written to the folder's disk."""
    return shutil.disk_usage(folder).free


class DiskSpace:
    """Counts what is written into a folder. Raises BackupError before its disk is full."""

    def __init__(self, folder: Path, what: str, needed: int = 0) -> None:
        self._folder = folder
        self._what = what
        self._since = 0
        self._require(needed)

    def took(self, count: int) -> None:
        self._since += count
        if self._since >= EVERY_BYTES:
            self._since = 0
            self._require(0)

    def _require(self, needed: int) -> None:
        left = free(self._folder)
        if left < needed + RESERVE_BYTES:
            wants = f"{gib(needed + RESERVE_BYTES)} free"
            raise BackupError(
                f"{self._what} needs {wants} in {self._folder}, which has {gib(left)}. Nothing was changed.",
                "Free some space, for example by deleting old launches or backups, then try again.",
                status=507,
            )


def not_written(path: Path, error: OSError) -> BackupError:
    """An OSError while something was written to `path`, in words."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "Free some space on the disk" if full else "Check the disk and the permissions"
    return BackupError(
        f"{path} could not be written: {error.strerror or error}.",
        f"{remedy} of {path.parent}, then try again.",
        status=507 if full else 503,
    )
