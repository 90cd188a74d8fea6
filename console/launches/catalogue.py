"""Which launches there are, from their folders alone: what the log, the launch pages and `ingot logs` agree on."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.home import Home
from console.launches.folder import LAUNCH_ID, LOG, LaunchFolder


class Catalogue:
    """The launches of one state folder. Remembers what it has read of each."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._folders: dict[str, LaunchFolder] = {}

    def ids(self) -> list[str]:
        """Every launch, the newest first; ids sort by time."""
        try:
            with os.scandir(self.home.launches) as entries:
                names = [
                    entry.name
                    for entry in entries
                    if LAUNCH_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                ]
        except FileNotFoundError:
            return []
        for gone in self._folders.keys() - set(names):
            del self._folders[gone]
        return sorted(names, reverse=True)

    def find(self, launch_id: str) -> LaunchFolder | None:
        """The launch's folder; None where there is none, or where the name cannot be a launch's."""
        if not LAUNCH_ID.fullmatch(launch_id):
            return None
        path = self.home.launch(launch_id)
        if path.is_symlink() or not path.is_dir():
            self._folders.pop(launch_id, None)
            return None
        return self._folders.setdefault(launch_id, LaunchFolder(path))

    def newest_with_log(self) -> str | None:
        """The launch whose log is the engine's: the newest that wrote one. A launch that was refused in preflight
        started no process, so it does not take the log's place while an older one serves."""
        ids = self.ids()
        return next((name for name in ids if _written(self.home.launch(name) / LOG)), ids[0] if ids else None)


def _written(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
