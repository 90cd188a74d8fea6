"""The events of one launch in `events.jsonl`: written here, one line each, and read from any point on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from appliance.protocol import Beat, Event, EventBody

READ_BYTES = 256 * 1024


class EventLog:
    """Appends. A line is written in one call, so that readers see whole lines except the one being written."""

    def __init__(self, path: Path, launch: str) -> None:
        self.launch = launch
        self.sequence = last_sequence(path)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o660)
        _drop_torn_line(self._handle)
        self._torn = False
        self._complained = False

    def append(self, body: EventBody, time: float) -> Event:
        self.sequence += 1
        event = Event(launch=self.launch, sequence=self.sequence, time=time, body=body)
        line = (b"\n" if self._torn else b"") + msgspec.json.encode(event) + b"\n"
        try:
            self._torn = os.write(self._handle, line) < len(line)
        except OSError as error:
            # A full disk must not end a model that serves: the state stays right in memory, only history is lost.
            if not self._complained:
                print(f"ingot: cannot write {self.launch}/events.jsonl: {error.strerror}", file=sys.stderr)
            self._complained = True
        return event

    def beat(self, body: Beat, time: float) -> Event:
        """A beat repeats the last number and is not written."""
        return Event(launch=self.launch, sequence=self.sequence, time=time, body=body)

    def close(self) -> None:
        os.close(self._handle)
        self._handle = -1  # a late write must fail, not go into whatever file has the number next


class EventReader:
    """A place in one launch's events. Each `read` gives the complete lines that follow it, in order, each once."""

    def __init__(self, path: Path, after: int = 0) -> None:
        self._path = path
        self._offset = 0
        self._after = after

    def read(self) -> list[Event]:
        """An empty list: nothing new so far. Lines that are no events (torn by a full disk) are passed over."""
        size = READ_BYTES
        while True:
            try:
                with self._path.open("rb") as file:
                    file.seek(self._offset)
                    data = file.read(size)
            except FileNotFoundError:
                return []
            end = data.rfind(b"\n") + 1
            if end == 0 and len(data) == size:
                size *= 2  # one line is longer than what was read
                continue
            self._offset += end
            events = [event for line in data[:end].splitlines() if (event := _parse(line))]
            fresh = [event for event in events if event.sequence > self._after]
            if fresh:
                self._after = fresh[-1].sequence
                return fresh
            if end == 0:
                return []


def last_sequence(path: Path) -> int:
    """0 where there are no events. Reads from the end: a long launch must not make the next one wait."""
    if not path.exists():
        return 0
    size, length = READ_BYTES, path.stat().st_size
    while True:
        with path.open("rb") as file:
            file.seek(max(length - size, 0))
            lines = file.read().split(b"\n")[:-1]
        for line in reversed(lines if size >= length else lines[1:]):
            if (event := _parse(line)) is not None:
                return event.sequence
        if size >= length:
            return 0
        size *= 2


def _drop_torn_line(handle: int) -> None:
    """An earlier writer was cut off in the middle of its last line: nobody has been told of it."""
    size = end = os.fstat(handle).st_size
    while end > 0:
        begin = max(end - READ_BYTES, 0)
        found = os.pread(handle, end - begin, begin).rfind(b"\n")
        end = begin + found + 1
        if found >= 0:
            break
    if end < size:
        os.ftruncate(handle, end)


_decoder = msgspec.json.Decoder(Event)


def _parse(line: bytes) -> Event | None:
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None
