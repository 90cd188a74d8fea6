"""Which launches there are, from their folders alone: what supervisor, console and command line agree on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

from appliance.home import Home
from appliance.launches.folder import LAUNCH_ID, LaunchFolder
from appliance.protocol import LaunchRecord

LOOKED_BACK = 200
"""How many launches are looked through for the last good one of a profile."""


class Catalogue:
    """The launches of one state folder. Remembers what it has read of each."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._folders: dict[str, LaunchFolder] = {}
        self._lock = threading.Lock()

    def ids(self) -> list[str]:
        """Every launch, the newest first; ids sort by time."""
        try:
            with os.scandir(self.home.launches) as entries:
                names = [
                    entry.name
                    for entry in entries
                    if LAUNCH_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                ]
        except OSError:
            return []  # `problem` says why
        with self._lock:
            for gone in self._folders.keys() - set(names):
                del self._folders[gone]
        return sorted(names, reverse=True)

    def problem(self) -> str:
        """Why launches that are there cannot be seen; empty where they can, or where there are none yet."""
        try:
            os.scandir(self.home.launches).close()
        except FileNotFoundError:
            pass
        except OSError as error:
            return f"The folder of the launches, {self.home.launches}, cannot be read: {error.strerror}."
        return ""

    def find(self, launch_id: str) -> LaunchFolder | None:
        """The launch's folder; None where there is none, or where the name cannot be a launch's."""
        if not LAUNCH_ID.fullmatch(launch_id):
            return None
        path = self.home.launch(launch_id)
        with self._lock:
            if path.is_symlink() or not path.is_dir():
                self._folders.pop(launch_id, None)
                return None
            return self._folders.setdefault(launch_id, LaunchFolder(path))

    def folders(self) -> list[LaunchFolder]:
        """Every launch's, the newest first."""
        names = self.ids()
        with self._lock:
            return [
                self._folders.get(name) or self._folders.setdefault(name, LaunchFolder(self.home.launch(name)))
                for name in names
            ]

    def records(self) -> list[LaunchRecord]:
        """Every launch in short, the newest first. Those that have ended are not looked at again."""
        return [folder.settled or folder.record() for folder in self.folders()]

    def newest(self, limit: int) -> Iterator[tuple[LaunchFolder, LaunchRecord]]:
        """The last `limit` launches, the newest first, without those whose record cannot be read."""
        for folder in self.folders()[:limit]:
            if (record := folder.settled or folder.stored_record()) is not None:
                yield folder, record

    def last_good(self, profile: str) -> LaunchRecord | None:
        """The newest launch of this profile that became ready."""
        for _, record in self.newest(LOOKED_BACK):
            if record.profile == profile and record.ready_after_s is not None:
                return record
        return None

    def current(self) -> str | None:
        """The launch that the engine runs, or ran last. An attempt that preflight refused while an older launch went
        on serving is not it."""
        for launch_id in self.ids():
            folder = self.find(launch_id)
            if folder is not None and folder.started_an_engine():
                return launch_id
        return None
