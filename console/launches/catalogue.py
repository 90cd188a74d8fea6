"""Which launches there are, from their folders alone: what the log, the launch pages and `ingot logs` agree on."""

from __future__ import annotations

import os
import threading

from appliance.home import Home
from appliance.protocol import LaunchRecord
from console.launches.folder import LAUNCH_ID, LaunchFolder


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

    def records(self) -> list[LaunchRecord]:
        """Every launch in short, the newest first. Those that have ended are not looked at again."""
        names = self.ids()
        with self._lock:
            folders = [
                self._folders.get(name) or self._folders.setdefault(name, LaunchFolder(self.home.launch(name)))
                for name in names
            ]
        return [folder.settled or folder.record() for folder in folders]

    def current(self) -> str | None:
        """The launch that the engine runs, or ran last. An attempt that preflight refused while an older launch went
        on serving is not it."""
        for launch_id in self.ids():
            folder = self.find(launch_id)
            if folder is not None and folder.started_an_engine():
                return launch_id
        return None
