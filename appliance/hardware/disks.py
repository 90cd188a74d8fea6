"""How much room there is under the folders that are ours, and in /dev/shm."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from appliance.home import Home

SHM = Path("/dev/shm")


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """The file system under one of our folders: `purpose` is "state" or "models". `free_bytes` is what this user may
    still write."""

    path: str
    total_bytes: int
    free_bytes: int
    purpose: str = ""
    read_only: bool = False


def read_disks(home: Home) -> tuple[Disk, ...]:
    """One for each folder, though both may lie on one disk. A folder that is not there yet is asked of the nearest one
    above it."""
    found = []
    for purpose, folder in (("state", home.root), ("models", home.models)):
        there = next((place for place in (folder, *folder.parents) if os.path.isdir(place)), None)
        room = space(there) if there else None
        if room is None:
            continue
        total, free, read_only = room
        found.append(Disk(path=str(folder), total_bytes=total, free_bytes=free, purpose=purpose, read_only=read_only))
    return tuple(found)


def space(folder: Path) -> tuple[int, int, bool] | None:
    """(size, free for this user, mounted read-only); None if unknown."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    read_only = bool(status.f_flag & os.ST_RDONLY)
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize, read_only
