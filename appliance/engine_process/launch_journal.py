"""What is written down of a launch while it happens: every change goes into its record, its events, and to listeners.

The launch itself, which runs an engine, is `engine_launch.EngineLaunch`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, NamedTuple

from appliance.home import Home
from appliance.launches.event_stream import EventStream
from appliance.launches.events import EventLog
from appliance.launches.folder import LaunchFolder
from appliance.launches.record import note_end
from appliance.launches.states import ENDED, check_transition
from appliance.protocol import (
    Beat,
    Diagnosis,
    DiagnosisReport,
    ErrorLogged,
    EventBody,
    EvidenceLine,
    Finding,
    FindingReport,
    LaunchRecord,
    Load,
    LogLines,
    Phase,
    PhaseChange,
    PhaseRecord,
    ProcessEnd,
    ProcessEnded,
    Progress,
    Severity,
    State,
    StateChange,
)

# Progress is reported at most this often; the beginning and end of a phase always are.
PROGRESS_INTERVAL_S = 0.1


class Origin(NamedTuple):
    """What a launch was begun for, where not for a person: as its record says it."""

    restart_of: str | None = None
    requested_by: str | None = None
    returned_after: str | None = None


NO_ORIGIN = Origin()


class LaunchJournal:
    """`settled` is set once the launch is ready, or has ended."""

    def __init__(
        self,
        home: Home,
        stream: EventStream,
        *,
        launch_id: str,
        document: dict[str, Any],
        revision: str = "",
        started: float | None = None,
        attempt: bool = False,
        origin: Origin = NO_ORIGIN,
    ) -> None:
        """Makes the launch's folder: FileExistsError when there is one of this id already."""
        now = time.time() if started is None else started
        self.record = LaunchRecord(
            id=launch_id,
            profile=str(document.get("name", "")),
            revision=revision,
            engine=str(document.get("engine", "native")),
            started=now,
            state=State.IDLE,
            since=now,
            attempt=attempt,
            **origin._asdict(),
        )
        self.document = document
        self.settled = asyncio.Event()
        self._monotonic_start = time.monotonic() - (time.time() - now)
        self._phase_starts: dict[str, float] = {}
        self._phase_told: dict[str, float] = {}
        self._stream = stream
        self.folder = LaunchFolder.create(home, launch_id)
        try:
            self.folder.write_profile(document)
        except OSError as error:
            self._complain(error)
        self._events = EventLog(self.folder.events, launch_id)
        if not attempt:
            stream.begin(launch_id)

    @property
    def last_event(self) -> str:
        return f"{self.record.id}/{self._events.sequence}"

    @property
    def ended(self) -> bool:
        return self.record.state in ENDED

    def change(self, state: State, reason: str = "", exit_status: str | None = None) -> None:
        check_transition(self.record.state, state)
        now = time.time()
        record = self.record
        record.state, record.since, record.reason, record.exit_status = state, now, reason, exit_status
        if state is State.READY:
            record.ready_after_s = round(time.monotonic() - self._monotonic_start, 3)
        if state in ENDED:
            record.ended = now
            for phase in [p.phase for p in record.phases if p.outcome is None]:
                self.end_phase(phase, "skipped" if state is State.STOPPED else "failed")
        # The record first: readers that are notified of a state find it on disk.
        self._save()
        self._tell(StateChange(state=state, reason=reason))
        if state in ENDED:
            self._events.close()
        if state in ENDED or state is State.READY:
            self.settled.set()

    def begin_phase(self, phase: Phase) -> None:
        self._phase_starts[phase] = time.monotonic()
        self.record.phases.append(PhaseRecord(phase=phase, started=time.time()))
        self._tell(PhaseChange(phase=phase))

    def move_phase(self, phase: Phase, progress: Progress) -> None:
        """Begins it where it has not begun."""
        if phase not in self._phase_starts:
            self.begin_phase(phase)
        record = self._phase(phase)
        record.progress = progress
        record.seconds = self._seconds(phase)
        if time.monotonic() - self._phase_told.get(phase, 0.0) >= PROGRESS_INTERVAL_S:
            self._phase_told[phase] = time.monotonic()
            self._tell(PhaseChange(phase=phase, progress=progress, seconds=record.seconds))

    def end_phase(self, phase: str, outcome: Any = "done") -> None:
        """`outcome`: done, failed or skipped."""
        record = self._phase(phase)
        if record.outcome is None:
            record.outcome = outcome
            record.seconds = self._seconds(phase)
            self._tell(PhaseChange(phase=phase, progress=record.progress, seconds=record.seconds, outcome=outcome))

    def report(self, finding: Finding) -> None:
        self.record.findings.append(finding)
        self._tell(FindingReport(finding))
        if finding.severity is Severity.ERROR:  # for who reads `docker logs`: nothing else of preflight stands there
            fix = f" {finding.fix.text}" if finding.fix is not None else ""
            sys.stderr.write(f"ingot: {finding.id}: {finding.message}{fix}\n")

    def diagnose(self, diagnosis: Diagnosis) -> None:
        self.record.diagnosis = diagnosis
        try:
            self.folder.write_diagnosis(diagnosis)
        except OSError as error:
            self._complain(error)
        self._tell(DiagnosisReport(diagnosis))

    def error_logged(self, line: EvidenceLine) -> None:
        if self.record.state is State.STARTING:
            self.record.first_error = line
            self._tell(ErrorLogged(line))

    def process_ended(self, end: ProcessEnd) -> None:
        """Called again with the same end where more is known of it."""
        if not self.ended:
            note_end(self.record.process_ends, end)
            self._tell(ProcessEnded(end))

    def log(self, first: int, lines: tuple[str, ...]) -> None:
        if lines:
            self._tell(LogLines(first=first, lines=lines))

    def beat(self, load: Load) -> None:
        event = self._events.beat(Beat(load), time.time())
        self._stream.tell(event)

    def _phase(self, phase: str) -> PhaseRecord:
        return next(record for record in self.record.phases if record.phase == phase)

    def _seconds(self, phase: str) -> float:
        return round(time.monotonic() - self._phase_starts[phase], 3)

    def _tell(self, body: EventBody) -> None:
        event = self._events.append(body, time.time())
        if self.record.attempt:
            self._stream.tell(event)
        else:
            self._stream.notify()

    def _save(self) -> None:
        try:
            self.folder.write_record(self.record)
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        # A full disk must not end a model that serves.
        print(f"ingot: cannot write to launch {self.record.id}: {error.strerror}", file=sys.stderr)
