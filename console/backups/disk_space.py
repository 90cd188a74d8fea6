"""Free disk space: checked before something large is written, and repeatedly while it is. A backup must not take the
space that the engine and the console need."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from console.backups.errors import BackupError
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
            raise BackupError(
                "disk-full",
                f"{self._what} needs {gib(needed + RESERVE_BYTES)} free in {self._folder}, which has {gib(left)}. "
                "Nothing was changed.",
                "Free some space, for example by deleting old launches or backups, then try again.",
                status=507,
            )


def not_written(path: Path, error: OSError) -> BackupError:
    """What an OSError while writing `path` means."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "Free some space on the disk" if full else "Check the disk and the permissions"
    return BackupError(
        "disk-full" if full else "not-written",
        f"{path} could not be written: {error.strerror or error}.",
        f"{remedy} of {path.parent}, then try again.",
        status=507 if full else 503,
    )
