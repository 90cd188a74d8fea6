"""The state folder where the engine has a user of its own, of the console's group: what of it that user may see.

Everything is the console's alone but two kinds of folders: those that the engine reads, and those that it writes. What
lies in the latter may have been made by whatever runs in the engine, so nothing there is followed anywhere else.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from appliance.home import Home

PASSED_THROUGH: Final = 0o710
PRIVATE: Final = 0o700
READ: Final = ("active", "cache-packs", "casts")
"""Folders whose files the engine reads."""

WRITTEN: Final = ("launches", "selftest", "caches")
"""Folders in which the engine makes files, which the console reads, adds to and deletes."""

LOCK: Final = "serve.lock"
"""The engine's permissions at the root, where it must not create files."""


def share(home: Home) -> None:
    """Set up a state folder, whoever wrote it before: an engine running as the console's own user, or a restored
    backup. Raises OSError if it belongs to another user."""
    root = home.root
    for name in (*READ, *WRITTEN):
        (root / name).mkdir(mode=PRIVATE, exist_ok=True)
    os.close(os.open(root / LOCK, os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    with os.scandir(root) as entries:
        for entry in entries:
            shared = entry.name in (*READ, *WRITTEN, LOCK) or Path(entry.path) == home.models
            if not shared and not entry.is_symlink():
                _take(entry.path, 0o077)
    os.chmod(root / LOCK, 0o660)
    for name in READ:
        _give(root / name, 0o040)
    for name in WRITTEN:
        _give(root / name, 0o060)
    root.chmod(PASSED_THROUGH)  # last: up to here the engine sees nothing


def _take(path: str, bits: int) -> None:
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    if mode & bits:
        os.chmod(path, mode & ~bits)


def _give(folder: Path, bits: int) -> None:
    """To the group, all that this user made below the folder. Links are not followed; a file of another name elsewhere
    (a second hard link) is left alone."""
    mine = os.geteuid()
    for _, _, files, handle in os.fwalk(folder):
        _set(handle, bits | 0o010, mine)
        for name in files:
            found = os.stat(name, dir_fd=handle, follow_symlinks=False)
            if found.st_uid != mine or not stat.S_ISREG(found.st_mode):
                continue
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
            try:
                _set(file, bits, mine)
            finally:
                os.close(file)


def _set(handle: int, bits: int, mine: int) -> None:
    found = os.fstat(handle)
    is_folder = stat.S_ISDIR(found.st_mode)
    if found.st_uid != mine or not (is_folder or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1)):
        return
    mode = stat.S_IMODE(found.st_mode) & 0o700 | bits
    if mode != stat.S_IMODE(found.st_mode):
        os.fchmod(handle, mode)
