"""The files of one launch: written by the supervisor, read by everyone else.

Reading follows a launch while it goes on. Nothing that is missing, half-written or damaged stops it: what can be read
is returned, and what cannot is named in `problems`.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from appliance.home import Home, write_atomically
from appliance.launches.events import EventReader
from appliance.launches.record import folded, upgrade
from appliance.launches.states import ENDED
from appliance.protocol import Diagnosis, Event, LaunchRecord

EVENTS = "events.jsonl"
LOG = "engine.log"
PROFILE = "profile.yaml"
RECORD = "launch.json"
DIAGNOSIS = "diagnosis.json"
STACKS = "stacks.txt"
COMPILED = "compiled.json"

LAUNCH_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")
"""What may name a launch: one folder name, never a path."""


@dataclass
class LaunchFiles:
    """One launch as its folder tells it. `events` leaves out the log's lines, which engine.log has."""

    record: LaunchRecord
    events: list[Event] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class LaunchFolder:
    """Everything but the log and the events is replaced as a whole. Each `read` takes in only what was written since
    the one before. Methods that read may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self._lock = threading.RLock()
        self._forget()

    @classmethod
    def create(cls, home: Home, launch_id: str) -> LaunchFolder:
        """Raises FileExistsError when a launch of this id has been there before: launches are never overwritten."""
        folder = home.launch(launch_id)
        folder.mkdir(mode=0o770, parents=True)  # less what the umask takes: 0o700 where engine and console are one user
        return cls(folder)

    @property
    def events(self) -> Path:
        return self.path / EVENTS

    @property
    def log(self) -> Path:
        return self.path / LOG

    @property
    def profile(self) -> Path:
        return self.path / PROFILE

    @property
    def stacks(self) -> Path:
        return self.path / STACKS

    @property
    def compiled(self) -> Path:
        return self.path / COMPILED

    def write_record(self, record: LaunchRecord) -> None:
        write_atomically(self.path / RECORD, msgspec.json.format(msgspec.json.encode(record)))

    def write_profile(self, document: dict[str, Any]) -> None:
        """As it was given, whether it is valid or not."""
        from appliance.profile.document import write  # late: reading the state must not wait for it

        write_atomically(self.profile, write(document))

    def write_diagnosis(self, diagnosis: Diagnosis) -> None:
        write_atomically(self.path / DIAGNOSIS, msgspec.json.format(msgspec.json.encode(diagnosis)))

    def write_stacks(self, text: str) -> None:
        write_atomically(self.stacks, text)

    def write_compiled(self, text: str) -> None:
        """Where the engine compiles and what that depends on, of an engine that does."""
        write_atomically(self.compiled, text)

    def stored_record(self) -> LaunchRecord | None:
        """What launch.json says; None where it is missing, damaged, or may not be read by this user. The same object
        until the file changes."""
        with self._lock:
            self._read_record()
            return self._record if RECORD not in self._unreadable else None

    def record(self) -> LaunchRecord:
        """The launch in short, for lists: from launch.json alone where that can be read."""
        with self._lock:
            self._read_record()
            return self._record if self._record is not None else self.read().record

    @property
    def settled(self) -> LaunchRecord | None:
        """The record of a launch that was seen to have ended: it changes no more."""
        return self._record if self._record is not None and self._record.state in ENDED else None

    def started_an_engine(self) -> bool:
        """Whether this launch was, or is, the engine's: not a refused attempt, nor a folder that says nothing yet."""
        with self._lock:
            self._read_record()
            return not self._record.attempt if self._record is not None else self.log.exists()

    def profile_text(self) -> str:
        """The profile that was run, as it was written; empty where it is missing."""
        try:
            return self.profile.read_text("utf-8", "replace")
        except OSError:
            return ""

    def read_stacks(self) -> str | None:
        """None where none were taken, or could be written."""
        try:
            return self.stacks.read_text(errors="replace")
        except FileNotFoundError:
            return None

    def sizes(self) -> dict[str, int]:
        """Bytes by name of each file that the launch left."""
        try:
            with os.scandir(self.path) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file(follow_symlinks=False)}
        except OSError:
            return {}

    def read(self) -> LaunchFiles:
        with self._lock:
            self._read_events()
            self._read_record()
            record = folded(self._events, self._record, launch_id=self.id, started=_started(self.path))
            if record.diagnosis is None and record.state in ENDED:
                record.diagnosis = self._read_diagnosis()
            return LaunchFiles(record, list(self._events), self._problems())

    def _forget(self) -> None:
        self._reader = EventReader(self.events, logs=False)
        self._events: list[Event] = []
        self._record_seen: tuple[int, int] | None = None
        self._record: LaunchRecord | None = None
        self._unreadable: dict[str, str] = {}

    def _problems(self) -> list[str]:
        problems = list(self._unreadable.values())
        if damaged := self._reader.damaged:
            lines = "line" if damaged == 1 else "lines"
            problems.append(f"{damaged} {lines} of {EVENTS} could not be read; the rest is shown.")
        if not self._events and self._record is None:
            problems.append(f"Neither {EVENTS} nor {RECORD} in {self.path} says anything about this launch.")
        return problems

    def _read_events(self) -> None:
        try:
            if self._reader.cut_off():
                self._forget()
            while events := self._reader.read():
                self._events += events
        except OSError as error:
            self._unreadable[EVENTS] = f"{self.events} cannot be read: {error.strerror}."
        else:
            self._unreadable.pop(EVENTS, None)

    def _read_record(self) -> None:
        path = self.path / RECORD
        try:
            status = path.stat()
            seen = (status.st_mtime_ns, status.st_size)
            if seen == self._record_seen:
                return
            self._record_seen = None
            content = path.read_bytes()
            self._record_seen = seen
            self._record = _record_decoder.decode(content)
            upgrade(self._record)
        except FileNotFoundError:
            self._record = self._record_seen = None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._unreadable[RECORD] = f"{RECORD} is damaged ({error}); what the events tell is shown."
        except OSError as error:
            self._record_seen = None
            self._unreadable[RECORD] = f"{path} cannot be read: {error.strerror}."
        else:
            self._unreadable.pop(RECORD, None)

    def _read_diagnosis(self) -> Diagnosis | None:
        try:
            return _diagnosis_decoder.decode((self.path / DIAGNOSIS).read_bytes())
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None  # already in the launch's events and record, or unknown


_record_decoder = msgspec.json.Decoder(LaunchRecord)
_diagnosis_decoder = msgspec.json.Decoder(Diagnosis)


def _started(path: Path) -> float:
    """When the launch began as far as the folder's own date tells."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
