"""The indexes of the logs that somebody has looked at lately."""

from __future__ import annotations

import threading
from collections import OrderedDict

from appliance.home import Home
from appliance.launches.folder import LOG
from console.logs.index import LogIndex

KEPT = 8
"""Logs whose index is kept. A large log's index takes a few megabytes, and seconds to make again."""


class LogStore:
    """One index per launch, created on first use; the least recently used is dropped."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._indexes: OrderedDict[str, LogIndex] = OrderedDict()

    def index(self, launch_id: str) -> LogIndex:
        with self._lock:
            index = self._indexes.pop(launch_id, None) or LogIndex(self._home.launch(launch_id) / LOG)
            self._indexes[launch_id] = index
            while len(self._indexes) > KEPT:
                self._indexes.popitem(last=False)
            return index
