"""Whether drafts are worth their trouble, as counted: tokens gained for each time that some were looked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Fewer tokens gained for each look than this, and drafts cost more than they bring: what a step must wait for before it
# can be laid out, and the rows that it verifies.
LEAST_GAIN: Final = 0.2


@dataclass(slots=True)
class Acceptance:
    """Of one request, or of all. After each `window` looks that gained too little, the next `pause` chances to look are
    left out. Counts chances rather than seconds, so that all ranks decide alike."""

    window: int
    pause: int
    looks: int = 0
    gained: int = 0
    left_out: int = 0  # of the pause, chances that are still to be left out

    @property
    def is_on(self) -> bool:
        return not self.left_out

    def leave_out(self) -> None:
        """A chance to look passes while it is off."""
        self.left_out -= 1

    def note(self, gained: int) -> None:
        """A look, by which a request got so many tokens more than it would have without."""
        self.looks += 1
        self.gained += gained
        if self.looks == self.window:
            if self.gained < LEAST_GAIN * self.window:
                self.left_out = self.pause
            self.looks = self.gained = 0
