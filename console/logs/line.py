"""One log line as it is shown: its columns, and its text in coloured pieces, cut to a length that a page can bear."""

from __future__ import annotations

import msgspec

from console.logs import ansi
from console.logs.classify import Level, prefix_length, time_of

SHOWN_CHARACTERS = 4000
"""A longer line is shortened for display; the file and its download keep it complete."""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """`number` counts from 1. `prefix` is how many characters of the text say only what `time`, `level` and `process`
    say, so that a page with columns for these can leave them out. `cut` is how many characters are not shown."""

    number: int
    level: str
    segments: list[ansi.Segment]
    process: str = ""
    time: str | None = None
    prefix: int = 0
    cut: int = 0

    @property
    def message(self) -> list[ansi.Segment]:
        """The text's pieces after the prefix."""
        left = self.prefix
        found = []
        for segment in self.segments:
            if left < len(segment.text):
                found.append(segment._replace(text=segment.text[left:]))
            left = max(left - len(segment.text), 0)
        return found


def shown(number: int, raw: bytes, *, level: Level, process: str = "", cut: int = 0) -> Line:
    """A line from its bytes; `cut` are those of its end that were not even read."""
    kept: list[ansi.Segment] = []
    room = SHOWN_CHARACTERS
    for segment in ansi.segments(decoded(raw)):
        cut += max(len(segment.text) - room, 0)
        if room:
            kept.append(segment._replace(text=segment.text[:room]))
        room = max(room - len(segment.text), 0)
    beginning = "".join(segment.text for segment in kept[:8])
    return Line(
        number,
        level.name.lower(),
        kept,
        process=process,
        time=time_of(beginning),
        prefix=prefix_length(beginning),
        cut=cut,
    )


def decoded(raw: bytes) -> str:
    return raw.rstrip(b"\n").decode("utf-8", "replace")
