"""Scans the media folder (`INGOT_MEDIA`), under which sticks are mounted, for bundles, whole or in parts, and model
folders. Nothing there is trusted: links are not followed, and the scan is bounded."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DEPTH = 5
"""Folders below the media folder: `/media/anna/STICK/ingot/models/`."""
ENTRIES = 20_000
SECONDS = 3.0
"""A scan ends after this many entries or seconds, and says so."""
FOUND = 100

BUNDLE = re.compile(r"(?P<whole>.+\.(?:bundle|ingot))(?:\.(?P<part>\d{3}))?", re.IGNORECASE)
NOT_ENTERED = frozenset({"$recycle.bin", "system volume information", "lost+found"})
"""Folders that operating systems create on sticks; hidden ones are skipped, too."""


@dataclass(frozen=True)
class Found:
    """A bundle or a model folder. `name` is its path below the media folder, which pages use; `path` is what to open:
    the bundle's file or its first part. `stamp` changes when one of its files does."""

    name: str
    path: Path
    is_bundle: bool
    bytes: int
    modified: float
    stamp: tuple[tuple[str, int, int], ...]
    parts: int = 0
    problem: str = ""

    @property
    def title(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def place(self) -> str:
        """Its parent folder, below the media folder."""
        return self.name.rpartition("/")[0]


@dataclass(frozen=True)
class Sight:
    """The result of one scan. `problem` is why there was nothing to scan; `empty` are empty folders directly below it,
    such as a mount point without its drive."""

    folder: Path
    found: tuple[Found, ...] = ()
    files: int = 0
    empty: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    ended_early: bool = False
    problem: str = ""


@dataclass
class _Walk:
    """What has been seen so far."""

    files: int = 0
    entries: int = 0
    empty: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    until: float = field(default_factory=lambda: time.monotonic() + SECONDS)

    @property
    def enough(self) -> bool:
        return self.entries >= ENTRIES or time.monotonic() > self.until


def look(media: Path) -> Sight:
    """Scan the media folder, breadth first."""
    if not os.path.lexists(media):
        return Sight(media, problem="missing")
    walk, found = _Walk(), list[Found]()
    waiting = deque([media])
    while waiting and not walk.enough and len(found) < FOUND:
        folder = waiting.popleft()
        here = _entries(folder, walk)
        if here is None:
            continue
        if not here and folder.parent == media:
            walk.empty.append(folder.name)
        if (model := _model_folder(folder, media, here)) is not None:
            found.append(model)
            continue
        found += _bundles(folder, media, here)
        if len(folder.relative_to(media).parts) < DEPTH:
            waiting += [Path(entry.path) for entry in here if _is_entered(entry)]
    return Sight(
        media,
        found=tuple(found[:FOUND]),
        files=walk.files,
        empty=tuple(walk.empty),
        unreadable=tuple(walk.unreadable),
        ended_early=bool(waiting) or walk.enough,
    )


def _entries(folder: Path, walk: _Walk) -> list[os.DirEntry[str]] | None:
    """Sorted by name; None if the folder cannot be read."""
    here = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                walk.entries += 1
                walk.files += entry.is_file(follow_symlinks=False)
                here.append(entry)
                if walk.enough:
                    break
    except OSError as error:
        walk.unreadable.append(f"{printed(str(folder))}: {error.strerror}")
        return None
    return sorted(here, key=lambda entry: entry.name)


def _is_entered(entry: os.DirEntry[str]) -> bool:
    return (
        entry.is_dir(follow_symlinks=False)
        and not entry.name.startswith(".")
        and entry.name.lower() not in NOT_ENTERED
        and printed(entry.name) == entry.name
    )


def _model_folder(folder: Path, media: Path, here: list[os.DirEntry[str]]) -> Found | None:
    """A folder laid out like a model from Hugging Face."""
    names = {entry.name for entry in here}
    if folder == media or "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        return None
    return _row(folder, media, list(_regular(here)), is_bundle=False)


def _bundles(folder: Path, media: Path, here: list[os.DirEntry[str]]) -> Iterator[Found]:
    """The parts of one bundle are one row, named after the first."""
    parts: dict[str, dict[int, os.DirEntry[str]]] = {}
    for entry in here:
        match = BUNDLE.fullmatch(entry.name)
        if match is None or entry.name.startswith("."):
            continue
        if printed(entry.name) != entry.name or not entry.is_file(follow_symlinks=False):
            odd = "is not a regular file. Links, pipes, devices and folders are not opened"
            problem = odd if printed(entry.name) == entry.name else "has a name that cannot be shown. Rename the file"
            name = printed(str(Path(entry.path).relative_to(media)))
            yield Found(name, Path(entry.path), True, 0, 0.0, (), problem=problem)
        elif match["part"]:
            parts.setdefault(match["whole"], {})[int(match["part"])] = entry
        else:
            yield _row(Path(entry.path), media, [entry], is_bundle=True)
    for whole, numbered in parts.items():
        missing = next(number for number in range(1, len(numbered) + 2) if number not in numbered)
        problem = (
            f"is incomplete: its part {whole}.{missing:03} is missing. Copy it here, too"
            if missing <= max(numbered)
            else ""
        )
        rows = [entry for _, entry in sorted(numbered.items())]
        first = folder / f"{whole}.001" if 1 not in numbered else Path(numbered[1].path)
        yield _row(first, media, rows, is_bundle=True, parts=len(numbered), problem=problem)


def _row(
    path: Path, media: Path, files: list[os.DirEntry[str]], *, is_bundle: bool, parts: int = 0, problem: str = ""
) -> Found:
    stamp, size, modified = [], 0, 0.0
    for entry in files:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError as error:
            problem = problem or f"cannot be read: {error.strerror}"
            continue
        stamp.append((entry.name, status.st_size, status.st_mtime_ns))
        size, modified = size + status.st_size, max(modified, status.st_mtime)
    name = str(path.relative_to(media))
    return Found(name, path, is_bundle, size, modified, tuple(stamp), parts=parts, problem=problem)


def _regular(here: list[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in here if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."))


def printed(name: str) -> str:
    """A name that is safe to show: invalid bytes and control characters are escaped."""
    return name if name.isprintable() else ascii(name)[1:-1]
