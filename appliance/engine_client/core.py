"""The native engine's core as a process with its two sockets. Starting one costs a few milliseconds here: all that is
slow happens on the other side, so it is started before anything is known about the profile."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from appliance.engine_client.channel import CoreChannel
from appliance.engine_process.child import Child
from appliance.given_file import read_given

CORE_COMMAND = (sys.executable, "-m", "appliance.engine")
# A line of a profile that nothing has parsed yet, by itself or within the active one's file. One that says it in
# another way has a core started in vain.
_VLLM: Final = re.compile(rb"""^(?:  )?engine: *["']?vllm["']? *$""", re.MULTILINE)
_LONGEST: Final = 256 * 1024  # bytes of a profile, as `profile.text` has it, whose import would delay the core


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


def start_ahead(profile_file: Path) -> NativeCore | None:
    """A core before anything is known; None where no process could be started: the launch tries again, and tells. None
    as well where the profile plainly is one of vLLM's, whose own start the core's imports would only slow down."""
    if _plainly_vllm(profile_file):
        return None
    try:
        return NativeCore()
    except OSError:
        return None


def _plainly_vllm(profile_file: Path) -> bool:
    """False also of what cannot be read, only once, or not as a profile, as weights: whoever reads it for the launch
    says what is wrong with it."""
    try:
        return profile_file.is_file() and _VLLM.search(read_given(profile_file, _LONGEST)) is not None
    except OSError:
        return False
