"""The command `ingot` on a machine whose sticks are slow, so that the import of a few megabytes can be watched."""

from __future__ import annotations

import time

from appliance.bundle.parts import Joined
from appliance.cli import main

AT_ONCE = 64 << 10
PAUSE_S = 0.02
"""After each such piece: three megabytes a second."""
LARGE = 1 << 20
"""Whoever asks for less at once reads a head."""


def slow_down() -> None:
    read_into = Joined.read_into

    def read(self: Joined, buffer: memoryview, at: int) -> int:
        if len(buffer) < LARGE:
            return read_into(self, buffer, at)
        time.sleep(PAUSE_S)
        return read_into(self, buffer[:AT_ONCE], at)

    Joined.read_into = read  # type: ignore[method-assign]


if __name__ == "__main__":
    slow_down()
    main()
