"""The live log: frames of server-sent events that a browser can lose and take up again anywhere.

A frame says that lines `first` .. `last` of a launch's log exist now, and carries their text. Its id is
`<launch>#<last>`: what comes back in `Last-Event-ID` says what was seen, so no line is lost or sent twice. Where the
engine writes faster than anybody reads, a frame carries only its last lines; a reader fetches the others if it wants
to look at them. When the engine starts anew, a reader of the current log is told (`launch`) and goes on with that one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from console.launches.catalogue import Catalogue
from console.logs.index import Line
from console.logs.store import LogStore

POLL_S: Final = 0.1
HEARTBEAT_S: Final = 10.0
CARRIED_LINES: Final = 1000
"""Lines of text in one frame at most."""

UNFINISHED_AFTER_S: Final = 0.5
"""A line that stands unfinished for so long is shown as far as it goes."""

CURRENT: Final = "current"


class LinesFrame(msgspec.Struct, frozen=True):
    """Lines `first` .. `last` exist; `lines` are the last of them, as many as a frame carries."""

    launch: str
    first: int
    last: int
    lines: list[Line]


class LaunchFrame(msgspec.Struct, frozen=True):
    """From here on the lines are those of `launch`; `previous` is the one before."""

    launch: str
    previous: str | None


class UnfinishedFrame(msgspec.Struct, frozen=True):
    """A line that the engine is still writing. It has no id: it will be sent again when it is whole."""

    launch: str
    line: Line


Frame = LinesFrame | LaunchFrame | UnfinishedFrame | None
"""None: nothing happened, but the connection lives."""

_NAMES = {LinesFrame: "lines", LaunchFrame: "launch", UnfinishedFrame: "unfinished"}


def encoded(frame: Frame) -> bytes:
    """A frame as it goes over the wire. The data is JSON on one line, so that no log line can end or forge a frame."""
    if frame is None:
        return b": still here\n\n"
    identity = ""
    if isinstance(frame, LinesFrame):
        identity = f"id: {position(frame.launch, frame.last)}\n"
    elif isinstance(frame, LaunchFrame):
        identity = f"id: {position(frame.launch, 0)}\n"
    head = f"{identity}event: {_NAMES[type(frame)]}\ndata: "
    return head.encode() + msgspec.json.encode(frame) + b"\n\n"


def position(launch: str, line: int) -> str:
    return f"{launch}#{line}"


def parse_position(text: str) -> tuple[str, int] | None:
    """Launch and line of an id that `position` made; None for anything else."""
    launch, separator, number = text.rpartition("#")
    if not separator or not launch or not (number.isascii() and number.isdigit() and len(number) < 12):
        return None
    return launch, int(number)


async def follow(
    catalogue: Catalogue, store: LogStore, *, launch: str = CURRENT, after: tuple[str, int] | None = None
) -> AsyncIterator[Frame]:
    """Frames without end. `launch` is a launch's id, or `current`: the engine's, whichever that will be. `after` is
    the launch and line that were seen last; without it the log is told from its first line."""
    follows = launch == CURRENT
    shown, seen = after if after is not None else ((None, 0) if follows else (launch, 0))
    last_sent = last_growth = time.monotonic()
    unfinished: Line | None = None
    while True:
        newest = await asyncio.to_thread(catalogue.newest_with_log) if follows else launch
        frames: list[Frame] = []
        if shown is None or catalogue.find(shown) is None:
            if newest is not None and newest != shown:
                frames.append(LaunchFrame(newest, shown))
                shown, seen, unfinished = newest, 0, None
        elif (lines := await asyncio.to_thread(_next_lines, store, shown, seen)) is not None:
            frames.append(lines)
            seen, unfinished, last_growth = lines.last, None, time.monotonic()
        elif newest is not None and newest != shown:
            # The old log has been told to its end.
            frames.append(LaunchFrame(newest, shown))
            shown, seen, unfinished = newest, 0, None
        elif time.monotonic() - last_growth > UNFINISHED_AFTER_S:
            line = await asyncio.to_thread(store.index(shown).unfinished)
            if line is not None and line != unfinished:
                frames.append(UnfinishedFrame(shown, line))
                unfinished = line
        if not frames and time.monotonic() - last_sent > HEARTBEAT_S:
            frames.append(None)
        for frame in frames:
            last_sent = time.monotonic()
            yield frame
        if not frames:
            await asyncio.sleep(POLL_S)
        elif isinstance(frames[-1], LinesFrame):
            await asyncio.sleep(POLL_S / 2)


def _next_lines(store: LogStore, launch: str, seen: int) -> LinesFrame | None:
    index = store.index(launch)
    total = index.refresh()
    if total < seen:
        seen = 0  # the file was replaced by a shorter one
    if total == seen:
        return None
    carried = index.lines(max(seen + 1, total - CARRIED_LINES + 1), CARRIED_LINES)
    return LinesFrame(launch, seen + 1, total, carried)
