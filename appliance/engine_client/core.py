"""The native engine's core as a process with its two sockets. Starting one costs a few milliseconds here: all that is
slow happens on the other side, so it is started before anything is known about the profile."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from appliance.engine_client.channel import CoreChannel
from appliance.engine_process.child import Child

CORE_COMMAND = (sys.executable, "-m", "appliance.engine")


class NativeCore:
    def __init__(self, command: Sequence[str] = CORE_COMMAND) -> None:
        self.channel = CoreChannel()
        # Unbuffered, so that its last words before a crash are in the pipe; faulthandler, so that there are some.
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        # The core gets its parent's id: if it asked itself, the parent might be gone already and replaced by another.
        arguments = ("--connect", str(self.channel.folder), "--parent", str(os.getpid()))
        try:
            self.child = Child([*command, *arguments], environment)
        except OSError:
            self.channel.close()
            raise

    def kill(self) -> None:
        """At once, without an event loop: for a front door that cannot even begin."""
        self.child.kill()
        self.channel.close()


def start_ahead() -> NativeCore | None:
    """A core before anything is known; None where no process could be started: the launch tries again, and tells."""
    try:
        return NativeCore()
    except OSError:
        return None
