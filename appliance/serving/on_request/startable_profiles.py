"""The profiles that a request may start, as the console last wrote them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from appliance.serving.access import WatchedFile

if TYPE_CHECKING:
    from appliance.profile.startable import Startable

LATEST = ":latest"


class StartableProfiles:
    def __init__(self, file: Path) -> None:
        self._file = WatchedFile(file)
        self._content: bytes | None = None
        self._known: dict[str, Startable] = {}

    def read(self) -> Mapping[str, Startable]:
        """By the name of their model; empty where no request may start any. Of a file that cannot be read, what it said
        before holds."""
        try:
            content = self._file.read()
            if content is not self._content:
                self._known = _read(content) if content is not None else {}
                self._content = content
        except (OSError, msgspec.DecodeError) as error:
            print(f"ingot: active/on-request.json cannot be read: {error}", file=sys.stderr)
        return self._known


def model_named(asked: str, names: Mapping[str, object], *, tagged: bool) -> str | None:
    """Which of the models is asked for. `tagged`: as Ollama has it, a name without a tag stands for `:latest`."""
    if asked in names:
        return asked
    bare = asked.removesuffix(LATEST)
    return next((name for name in names if tagged and name.removesuffix(LATEST) == bare), None)


def _read(content: bytes) -> dict[str, Startable]:
    from appliance.profile.startable import read_startable  # late: the first answer over HTTP does not wait for it

    return read_startable(content)
