"""Reads what one launch left in `launches/<id>/`. Nothing that is missing, half-written or damaged stops it: what can
be read is shown, and what cannot is named in `problems`."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from appliance.protocol import (
    Diagnosis,
    DiagnosisReport,
    Event,
    FindingReport,
    LaunchRecord,
    LogLines,
    PhaseChange,
    PhaseRecord,
    State,
    StateChange,
)
from appliance.supervisor.launch_folder import DIAGNOSIS, EVENTS, LOG, PROFILE, RECORD
from appliance.supervisor.states import ENDED

LAUNCH_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")
"""What may name a launch: one folder name, never a path."""

_MAX_LINE = 4 << 20
_LOG_EVENT = b'"body":{"type":"log"'


@dataclass
class LaunchFiles:
    """One launch as its folder tells it. `events` leaves out the log's lines, which engine.log has."""

    record: LaunchRecord
    events: list[Event] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class LaunchFolder:
    """Follows one launch's folder: each `read` takes in only what was written since the one before. Methods may be
    called from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self._lock = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        self._position = 0
        self._events: list[Event] = []
        self._damaged_events = 0
        self._record_seen: tuple[int, int] | None = None
        self._record: LaunchRecord | None = None
        self._unreadable: dict[str, str] = {}

    @property
    def log(self) -> Path:
        return self.path / LOG

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
            return (self.path / PROFILE).read_text("utf-8", "replace")
        except OSError:
            return ""

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

    def _problems(self) -> list[str]:
        problems = list(self._unreadable.values())
        if self._damaged_events:
            lines = "line" if self._damaged_events == 1 else "lines"
            problems.append(f"{self._damaged_events} {lines} of {EVENTS} could not be read; the rest is shown.")
        if not self._events and self._record is None:
            problems.append(f"Neither {EVENTS} nor {RECORD} in {self.path} says anything about this launch.")
        return problems

    def _read_events(self) -> None:
        path = self.path / EVENTS
        try:
            with path.open("rb") as file:
                if path.stat().st_size < self._position:
                    self._forget()
                file.seek(self._position)
                while line := file.readline(_MAX_LINE):
                    if not line.endswith(b"\n"):
                        if len(line) < _MAX_LINE:
                            break  # still being written
                        self._damaged_events += 1
                        while (rest := file.readline(_MAX_LINE)) and not rest.endswith(b"\n"):
                            pass
                    else:
                        self._take(line)
                    self._position = file.tell()
        except FileNotFoundError:
            return
        except OSError as error:
            self._unreadable[EVENTS] = f"{path} cannot be read: {error.strerror}."
        else:
            self._unreadable.pop(EVENTS, None)

    def _take(self, line: bytes) -> None:
        if _LOG_EVENT in line[:300] or not line.strip():
            return
        try:
            event = _event_decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._damaged_events += 1
            return
        if not isinstance(event.body, LogLines):
            self._events.append(event)

    def _read_record(self) -> None:
        path = self.path / RECORD
        try:
            status = path.stat()
            seen = (status.st_mtime_ns, status.st_size)
            if seen != self._record_seen:
                self._record = _record_decoder.decode(path.read_bytes())
                self._record_seen = seen
        except FileNotFoundError:
            self._record = None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._unreadable[RECORD] = f"{RECORD} is damaged ({error}); what the events tell is shown."
        except OSError as error:
            self._unreadable[RECORD] = f"{path} cannot be read: {error.strerror}."
        else:
            self._unreadable.pop(RECORD, None)

    def _read_diagnosis(self) -> Diagnosis | None:
        try:
            return _diagnosis_decoder.decode((self.path / DIAGNOSIS).read_bytes())
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None  # the launch's events and record said it already, or nobody did


_event_decoder = msgspec.json.Decoder(Event)
_record_decoder = msgspec.json.Decoder(LaunchRecord)
_diagnosis_decoder = msgspec.json.Decoder(Diagnosis)


def folded(events: list[Event], record: LaunchRecord | None, *, launch_id: str, started: float) -> LaunchRecord:
    """The launch as its events tell it; what they do not tell (or no longer: a cut file) comes from `record`."""
    first = events[0].time if events else started
    told = LaunchRecord(id=launch_id, profile="", started=first, since=first)
    if record is not None:
        told = msgspec.structs.replace(
            told,
            profile=record.profile,
            revision=record.revision,
            engine=record.engine,
            started=record.started,
            exit_status=record.exit_status,
            attempt=record.attempt,
            restart_of=record.restart_of,
        )
    told.phases, told.findings = [], []
    for event in events:
        _apply(told, event)
    if record is None:
        return told
    if record.since > told.since or not any(isinstance(event.body, StateChange) for event in events):
        for name in ("state", "since", "reason", "ended", "ready_after_s"):
            setattr(told, name, getattr(record, name))
    told.phases = told.phases or record.phases
    told.findings = told.findings or record.findings
    told.diagnosis = told.diagnosis or record.diagnosis
    told.reason = told.reason or record.reason
    return told


def _apply(told: LaunchRecord, event: Event) -> None:
    match event.body:
        case StateChange(state=state, reason=reason):
            told.state, told.since, told.reason = state, event.time, reason
            if state is State.READY and told.ready_after_s is None:
                told.ready_after_s = event.time - told.started
            told.ended = event.time if state in ENDED else None
        case PhaseChange() as change:
            _apply_phase(told.phases, change, event.time)
        case FindingReport(finding=finding):
            told.findings.append(finding)
        case DiagnosisReport(diagnosis=diagnosis):
            told.diagnosis = diagnosis


def _apply_phase(phases: list[PhaseRecord], change: PhaseChange, time: float) -> None:
    for phase in reversed(phases):
        if phase.phase == change.phase and phase.outcome is None:
            phase.seconds, phase.progress, phase.outcome = change.seconds, change.progress, change.outcome
            return
    phases.append(
        PhaseRecord(
            phase=change.phase,
            started=time - change.seconds,
            seconds=change.seconds,
            progress=change.progress,
            outcome=change.outcome,
        )
    )


def _started(path: Path) -> float:
    """When the launch began as far as the folder's own date tells."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
