"""Partial imports in the models folder: hidden folders left by an interrupted import. Importing the same bundle again
resumes from them; those that cannot be resumed are deleted."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from appliance.bundle.errors import BundleError
from appliance.bundle.lock import only_one

RENAMED = "as"
"""`.incoming-NAME-as` holds a bundle's model that is to be called NAME here."""
COPY = "copy"
"""`.incoming-NAME-copy` holds a plain folder's copy, which nobody can go on with: no digest says what was whole."""

_FOLDER = re.compile(rf"\.incoming-(?P<name>.+)-(?P<kind>[0-9a-f]{{16}}|{RENAMED}|{COPY})")


@dataclass(frozen=True)
class Leftover:
    """`name` is what the model would have been called."""

    name: str
    folder: Path
    bytes: int


def incoming(models: Path, name: str, kind: str) -> Path:
    return models / f".incoming-{name}-{kind}"


def leftovers(models: Path) -> list[Leftover]:
    found = []
    with contextlib.suppress(OSError), os.scandir(models) as entries:
        for entry in entries:
            match = _FOLDER.fullmatch(entry.name)
            if match is not None and entry.is_dir(follow_symlinks=False):
                found.append(Leftover(match["name"], Path(entry.path), _size(Path(entry.path))))
    return sorted(found, key=lambda leftover: leftover.name)


def discard(models: Path, names: tuple[str, ...]) -> None:
    """Delete partial imports of these models. Raises BundleError while an import is running."""
    with only_one(models):
        for leftover in leftovers(models):
            if leftover.name in names:
                shutil.rmtree(leftover.folder, ignore_errors=True)


def sweep(models: Path) -> None:
    """Delete partial imports that cannot be resumed, unless an import is running, such as one by the command line."""
    with contextlib.suppress(BundleError, OSError), only_one(models):
        for leftover in leftovers(models):
            if leftover.folder.name.endswith(f"-{COPY}"):
                shutil.rmtree(leftover.folder, ignore_errors=True)


def _size(folder: Path) -> int:
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total
