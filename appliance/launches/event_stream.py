"""Follows the events of all launches, one after the other, for any number of readers.

A reader is a place in a file, not a queue: one that is slow, or comes back after an hour, costs no memory and misses
nothing. Only transient events (beats, and those of a refused attempt) are outside that order: they have no ID, and a
reader who was away does not get them later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

import msgspec

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.launches.events import EventReader
from appliance.launches.folder import EVENTS
from appliance.protocol import Beat, Event

ASIDES_KEPT = 64


class Told(msgspec.Struct, frozen=True):
    """An event for a reader. `id` is what to resume after; None for events that are not stored, such as beats."""

    event: Event
    id: str | None


class UnknownEventError(ValueError):
    """An id to resume after that is not `<launch>/<sequence>` of a launch we have."""


class EventStream:
    def __init__(self, home: Home) -> None:
        self._home = home
        self._catalogue = Catalogue(home)
        self._wakers: set[asyncio.Event] = set()
        self._launch: str | None = None
        self._beat: Event | None = None
        self._asides: deque[tuple[int, Event]] = deque(maxlen=ASIDES_KEPT)
        self._aside_count = 0
        self._closed = False

    def begin(self, launch: str) -> None:
        """`launch` is now the one that the appliance runs; the one before it writes no more."""
        self._launch = launch
        self._beat = None
        self.notify()

    def notify(self) -> None:
        for waker in self._wakers:
            waker.set()

    def tell(self, event: Event) -> None:
        """Tell it in passing to those who listen now."""
        if isinstance(event.body, Beat):
            self._beat = event
        else:
            self._aside_count += 1
            self._asides.append((self._aside_count, event))
        self.notify()

    def close(self) -> None:
        """End every reader after what is already written."""
        self._closed = True
        self.notify()

    def check(self, after: str | None) -> None:
        """Raises UnknownEventError; lets a route refuse before it has begun to answer."""
        self._place(after)

    async def follow(self, after: str | None = None) -> AsyncGenerator[Told, None]:
        """Every event after the one with id `after`, through all later launches; without it, those of the present
        launch from its first."""
        waker = asyncio.Event()
        self._wakers.add(waker)
        try:
            launch, sequence = self._place(after)
            reader = self._reader(launch, sequence)
            beat, aside = self._beat, self._aside_count
            if launch is not None and launch == self._launch:
                beat = None  # a newcomer wants to see how the engine does now
            while True:
                waker.clear()
                if events := reader.read() if reader else []:
                    for event in events:
                        yield Told(event, event.id)
                    continue
                if (following := self._following(launch)) is not None:
                    launch, reader = following, self._reader(following, 0)
                    continue
                for number, event in list(self._asides):
                    if number > aside:
                        aside = number
                        yield Told(event, None)
                if self._beat is not None and self._beat is not beat:
                    beat = self._beat
                    yield Told(beat, None)
                if self._closed:
                    return
                await waker.wait()
        finally:
            self._wakers.discard(waker)

    def _reader(self, launch: str | None, sequence: int) -> EventReader | None:
        return EventReader(self._home.launch(launch) / EVENTS, sequence) if launch else None

    def _place(self, after: str | None) -> tuple[str | None, int]:
        if after is None:
            return self._launch, 0
        launch, _, sequence = after.rpartition("/")
        if not sequence.isdecimal() or self._catalogue.find(launch) is None:
            raise UnknownEventError(f"{after!r} is not an event ID. Write `<launch>/<sequence>`.")
        return launch, int(sequence)

    def _following(self, launch: str | None) -> str | None:
        """The launch to read after `launch`. The present one is always last: a clock that was turned back must not hide
        it behind older ids."""
        if launch == self._launch:
            return None
        if launch is None:
            return self._launch
        for later in reversed(self._catalogue.ids()):
            if later > launch and later != self._launch and not self._is_attempt(later):
                return later
        return self._launch

    def _is_attempt(self, launch: str) -> bool:
        """A refused attempt is not part of the sequence of launches."""
        folder = self._catalogue.find(launch)
        record = folder.stored_record() if folder else None
        return record is not None and record.attempt
