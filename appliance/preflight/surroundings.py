"""What only a process on the engine's own machine can see of it: files, limits, mounts, the clock. Reading never fails:
what is unknown is None."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from appliance.packages import Packages

_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class Mount:
    place: Path
    options: frozenset[str]


@dataclass(frozen=True)
class Surroundings:
    """`root` is where the file system begins, `packages` what is installed beside this program, `now` the clock."""

    root: Path = Path("/")
    packages: Packages = field(default_factory=lambda: Packages(()))
    now: float = field(default_factory=time.time)
    uid: int = field(default_factory=os.geteuid)

    @classmethod
    def here(cls) -> Surroundings:
        """Of this process."""
        return cls(packages=Packages(tuple(Path(entry) for entry in sys.path if entry)))

    def at(self, path: str | Path) -> Path:
        """An absolute path of the machine, as this process finds it."""
        return self.root / str(path).lstrip("/")

    def text(self, path: str | Path) -> str | None:
        """The beginning of a file; None where it cannot be read."""
        try:
            with self.at(path).open("rb") as file:
                return file.read(_MOST_BYTES).decode(errors="replace")
        except (OSError, ValueError):  # a NUL in a path is a ValueError
            return None

    def number(self, path: str | Path) -> int | None:
        """What a file of one number says; None for one that says `max` or nothing."""
        text = (self.text(path) or "").strip()
        return int(text) if text.isdecimal() and text.isascii() and len(text) < 20 else None

    @cached_property
    def mounts(self) -> tuple[Mount, ...]:
        """Later ones hide earlier ones of the same place."""
        found = []
        for line in (self.text("/proc/self/mounts") or "").splitlines():
            parts = line.split(" ")
            if len(parts) >= 4 and parts[1].startswith("/"):
                place = parts[1].replace("\\040", " ").replace("\\011", "\t")
                found.append(Mount(Path(place), frozenset(parts[3].split(","))))
        return tuple(found)

    def mount_of(self, path: Path) -> Mount | None:
        """The file system that an absolute path lies in."""
        holding = [mount for mount in self.mounts if path.is_relative_to(mount.place)]
        return max(reversed(holding), key=lambda mount: len(mount.place.parts), default=None)


def nearest_existing(path: Path) -> Path | None:
    """The path itself, or the folder above it that would have to hold it; None if unknown."""
    try:
        return next((place for place in (path, *path.parents) if place.exists()), None)
    except (OSError, ValueError):
        return None


def can_write(path: Path) -> bool:
    """Whether this user could make `path`, or write into it if it is a folder that exists."""
    place = nearest_existing(path)
    try:
        return place is not None and place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    except (OSError, ValueError):
        return False
