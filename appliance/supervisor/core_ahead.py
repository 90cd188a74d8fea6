"""A core's process that is started before its launch: importing its libraries takes longer than all else of a small
model's start."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from appliance.engine_client.core import NativeCore


class CoreAhead:
    """At most one. It has touched no device, and waits for its configuration."""

    def __init__(self, command: Sequence[str], core: NativeCore | None) -> None:
        self._command = command
        self._core = core

    def start(self) -> None:
        """Does nothing if there is one, or if no process can be had: `take` tries again."""
        if self._core is None:
            with contextlib.suppress(OSError):
                self._core = NativeCore(self._command)

    def take(self) -> NativeCore:
        """A new one if there is none that lives. Raises OSError when no process can be had."""
        if self._core is not None and self._core.child.has_ended:
            self.drop()
        core, self._core = self._core, None
        return core or NativeCore(self._command)

    def drop(self) -> None:
        """At once, without an event loop."""
        if self._core is not None:
            self._core.kill()
            self._core = None
