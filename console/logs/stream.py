"""The live log as a feed of the page's stream: frames that a browser can lose and take up again anywhere.

A frame says that lines `first` .. `last` of a launch's log exist now, and carries their text. Its position is
`<launch>#<last>`: what a page comes back with says what it has seen, so no line is lost or told twice. Where the engine
writes faster than anybody reads, a frame carries only its last lines; a page fetches the others if it wants to look at
them. When the engine restarts, a page that follows the current log gets `launch` and continues with that one.
The files are read here, not asked of the front door: the log of an engine that has died is there all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final

import msgspec

from appliance.launches.catalogue import Catalogue
from console.live.hub import Message
from console.logs.line import Line
from console.logs.store import LogStore

POLL_S: Final = 0.1
CARRIED_LINES: Final = 1000
"""Lines of text in one frame at most."""

UNFINISHED_AFTER_S: Final = 0.5
"""An unfinished line older than this is shown as it is."""

CURRENT: Final = "current"


class LinesFrame(msgspec.Struct, frozen=True, tag="lines", tag_field="kind"):
    """Lines `first` .. `last` exist; `lines` are the last of them, as many as a frame carries."""

    launch: str
    first: int
    last: int
    lines: list[Line]

    @property
    def position(self) -> str:
        return position(self.launch, self.last)


class LaunchFrame(msgspec.Struct, frozen=True, tag="launch", tag_field="kind"):
    """From here on the lines are those of `launch`."""

    launch: str

    @property
    def position(self) -> str:
        return position(self.launch, 0)


class UnfinishedFrame(msgspec.Struct, frozen=True, tag="unfinished", tag_field="kind"):
    """A line that the engine is still writing. It has no position: it is sent again once it is complete."""

    launch: str
    line: Line
    position: str = ""


Frame = LinesFrame | LaunchFrame | UnfinishedFrame


def feed(catalogue: Catalogue, store: LogStore) -> Callable[[str, str], AsyncGenerator[Message, None]]:
    """A feed of the hub: `log:<launch>` or `log:current`, from `<launch>#<line>` on."""

    async def frames(argument: str, after: str) -> AsyncGenerator[Message, None]:
        async for frame in follow(catalogue, store, launch=argument or CURRENT, after=parse_position(after)):
            # JSON on one line: no log line can end or forge a frame.
            yield Message("log", msgspec.json.encode(frame).decode(), frame.position)

    return frames


def position(launch: str, line: int) -> str:
    return f"{launch}#{line}"


def parse_position(text: str) -> tuple[str, int] | None:
    """Launch and line of what `position` made; None for anything else."""
    launch, separator, number = text.rpartition("#")
    if not separator or not launch or not (number.isascii() and number.isdigit() and len(number) < 12):
        return None
    return launch, int(number)


async def follow(
    catalogue: Catalogue, store: LogStore, *, launch: str = CURRENT, after: tuple[str, int] | None = None
) -> AsyncIterator[Frame]:
    """Frames without end. `launch` is a launch's id, or `current`: the engine's, whichever that will be. `after` is
    the launch and line that were seen last; without it the log is sent from its first line."""
    follows = launch == CURRENT
    shown: str | None = None if follows else launch
    seen = 0
    if after is not None and (follows or after[0] == launch):
        shown, seen = after
    last_growth = time.monotonic()
    unfinished: Line | None = None
    while True:
        if shown is not None and catalogue.find(shown) is not None:
            if (lines := await asyncio.to_thread(_next_lines, store, shown, seen)) is not None:
                yield lines
                seen, unfinished, last_growth = lines.last, None, time.monotonic()
                await asyncio.sleep(POLL_S / 2)
                continue
            if time.monotonic() - last_growth > UNFINISHED_AFTER_S:
                line = await asyncio.to_thread(store.index(shown).unfinished)
                if line is not None and line != unfinished:
                    yield UnfinishedFrame(shown, line)
                    unfinished = line
        # Only now that the log has been told to its end may another take its place.
        current = await asyncio.to_thread(catalogue.current) if follows else None
        if current is not None and current != shown:
            yield LaunchFrame(current)
            shown, seen, unfinished, last_growth = current, 0, None, time.monotonic()
        else:
            await asyncio.sleep(POLL_S)


def _next_lines(store: LogStore, launch: str, seen: int) -> LinesFrame | None:
    index = store.index(launch)
    total = index.refresh()
    if total < seen:
        seen = 0  # the file was replaced by a shorter one
    if total == seen:
        return None
    carried = index.lines(max(seen + 1, total - CARRIED_LINES + 1), CARRIED_LINES)
    return LinesFrame(launch, seen + 1, total, carried)
