"""Where a fixed profile is saved: in the file it came from, with a backup beside it, or as a revision in the profile
store."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from appliance.home import Home, write_atomically
from appliance.preflight.file_edit import edit
from appliance.profile.active import read_active

GROUP = "ingot.profile_store"
"""The entry point of whoever keeps revisions: the console, which this package does not import."""


class NotSavedError(Exception):
    """A fixed profile was not saved; says why, and what to do instead."""


class SaveRevision(Protocol):
    def __call__(self, home: Home, *, name: str, revision: str, document: Mapping[str, Any], note: str) -> str:
        """Save a revision on top of `revision` of the profile `name`; the answer is its name, as `chat r8`. Raises
        ValueError where it cannot be saved, with the reason and what to do."""


def save_file(path: Path, patch: Mapping[str, Any]) -> str:
    """Apply the patch to the file; the answer says what was written, and where the old one is. A file that is a link
    stays one."""
    target = path.resolve()
    backup = _free_name(target)
    try:
        edited = edit(target.read_text(encoding="utf-8"), patch)
        shutil.copy2(target, backup)
        write_atomically(target, edited.text, mode=target.stat().st_mode & 0o777)
    except OSError as error:
        raise NotSavedError(f"{path} was not changed: {error.strerror}. Make its folder writable.") from error
    lost = "" if edited.kept_comments else " Its comments could not be kept; they are in the backup."
    return f"{path} was changed. Backup: {backup.name}.{lost}"


def save_active(home: Home, document: Mapping[str, Any], note: str) -> str:
    """A new revision of the active profile; the running engine is not touched."""
    active = read_active(home)
    if active is None:
        raise NotSavedError("No profile is active. Name a file with --profile.")
    point = next(iter(metadata.entry_points(group=GROUP)), None)
    if point is None:
        raise NotSavedError("There is no profile store here. Edit the profile in the console.")
    save: SaveRevision = point.load()
    name = str(active.document.get("name", ""))
    try:
        saved = save(home, name=name, revision=active.revision, document=document, note=note)
    except ValueError as error:
        raise NotSavedError(str(error)) from error
    return f"Saved as {saved}. To run it: ingot profile activate {name}"


def _free_name(path: Path) -> Path:
    """`chat.yaml.before-fix`, or the first number behind it that is free."""
    number, name = 1, path.with_name(f"{path.name}.before-fix")
    while name.exists():
        number += 1
        name = path.with_name(f"{path.name}.before-fix-{number}")
    return name
