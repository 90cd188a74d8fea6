"""The events of one launch in `events.jsonl`: written here, one line each, and read from any point on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from appliance.protocol import Beat, Event, EventBody, LogLines

READ_BYTES = 256 * 1024
LONGEST_LINE = 4 << 20
"""Bytes. A longer line is not one of our events, and is skipped without being read into memory."""
_LOG_EVENT = b'"body":{"type":"log"'


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
    """A place in one launch's events. Each `read` gives the complete lines that follow it, in order, each once.

    `after` leaves out the events up to that number; `logs=False` those that hold only lines of the log. `damaged`
    counts the lines so far that are no events, such as one torn by a full disk.
    """

    def __init__(self, path: Path, after: int = 0, *, logs: bool = True) -> None:
        self.damaged = 0
        self._path = path
        self._offset = 0
        self._after = after
        self._logs = logs
        self._passing_over = False

    def cut_off(self) -> bool:
        """Whether the file is now shorter than what was read of it."""
        try:
            return self._path.stat().st_size < self._offset
        except FileNotFoundError:
            return False

    def read(self) -> list[Event]:
        """Some of what is new; an empty list where nothing is so far."""
        size = READ_BYTES
        while True:
            try:
                with self._path.open("rb") as file:
                    file.seek(self._offset)
                    data = file.read(size)
            except FileNotFoundError:
                return []
            end = data.rfind(b"\n") + 1
            if end == 0:
                if len(data) < size:
                    return []
                if size < LONGEST_LINE:
                    size *= 2  # one line is longer than what was read
                else:
                    self._offset += size
                    self._passing_over = True
                continue
            self._offset += end
            if events := self._events_of(data[:end]):
                return events

    def _events_of(self, data: bytes) -> list[Event]:
        lines = data.split(b"\n")[:-1]
        if self._passing_over:
            self._passing_over = False
            self.damaged += 1
            del lines[0]
        found = []
        for line in lines:
            if not line.strip() or (not self._logs and _LOG_EVENT in line[:300]):
                continue
            event = _parse(line)
            if event is None:
                self.damaged += 1
            elif event.sequence > self._after and (self._logs or not isinstance(event.body, LogLines)):
                found.append(event)
        return found


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
    """An earlier writer was cut off in the middle of its last line, which no reader has seen."""
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
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
