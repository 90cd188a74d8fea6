"""Deleting launches, so that a kill or an error halfway leaves nothing behind for good."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Final

from appliance.home import Home
from appliance.launches.folder import LaunchFolder

log = logging.getLogger(__name__)

DELETED: Final = ".deleted-"


def delete_folder(home: Home, folder: LaunchFolder) -> Path | None:
    """Delete a launch's folder. It is renamed first, so that readers see all of it or nothing; an error after that
    leaves the folder that is returned to the console's next start. Raises OSError if it could not be renamed."""
    grave = home.root / f"{DELETED}{folder.id}"
    folder.path.rename(grave)
    return None if _removed(grave) else grave


def sweep(home: Home) -> None:
    """Remove what earlier deletions have left, when the console starts."""
    for grave in home.root.glob(f"{DELETED}*"):
        _removed(grave)


def _removed(grave: Path) -> bool:
    try:
        shutil.rmtree(grave)
    except OSError as error:
        log.warning("A deleted launch still takes up space: %s (%s)", error.strerror, error.filename)
        return False
    return True
