"""Launch folders as the supervisor writes them, for tests of what reads them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml

from appliance.home import Home
from appliance.protocol import (
    Diagnosis,
    DiagnosisReport,
    Event,
    EventBody,
    EvidenceLine,
    Fix,
    LaunchRecord,
    LogLines,
    PhaseChange,
    PhaseRecord,
    ProcessEnd,
    ProcessEnded,
    Progress,
    State,
    StateChange,
)

STARTED = 1_795_168_800.0
PHASES = (("preflight", 0.02), ("core start", 1.1), ("weights", 2.5), ("cache", 0.01), ("self-test", 0.4))

DIAGNOSIS = Diagnosis(
    summary="The MoE kernel chosen by hand crashes on this GPU while graphs are taken.",
    family="kernel-crash",
    cause="flashinfer-moe-graphs",
    evidence=(EvidenceLine(3, "CUDA error: an illegal memory access was encountered"),),
    fix=Fix(text="Let the engine choose the MoE kernel.", patch={"backends.moe": "auto"}),
)


class WrittenLaunch:
    """One launch on disk, written event by event."""

    def __init__(
        self, home: Home, launch_id: str, *, profile: str = "qwen3-8b", revision: str = "r7", started: float = STARTED,
        attempt: bool = False,
    ) -> None:  # fmt: skip
        self.folder: Path = home.launch(launch_id)
        self.folder.mkdir(parents=True)
        self.time = started
        self.sequence = 0
        self.record = LaunchRecord(
            id=launch_id, profile=profile, revision=revision, started=started, since=started, attempt=attempt
        )
        document = {"schema": 1, "name": profile, "model": {"path": "Qwen3-8B"}, "backends": {"moe": "flashinfer"}}
        (self.folder / "profile.yaml").write_text(yaml.safe_dump(document))
        self.change(State.PREFLIGHT)

    def tell(self, body: EventBody, after_s: float = 0.0) -> None:
        self.sequence += 1
        self.time += after_s
        event = Event(launch=self.record.id, sequence=self.sequence, time=self.time, body=body)
        with (self.folder / "events.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(event) + b"\n")

    def change(self, state: State, reason: str = "") -> None:
        self.record.state, self.record.since, self.record.reason = state, self.time, reason
        if state is State.READY:
            self.record.ready_after_s = self.time - self.record.started
        if state in (State.FAILED, State.STOPPED, State.HUNG):
            self.record.ended = self.time
        self.save()
        self.tell(StateChange(state=state, reason=reason))

    def save(self) -> None:
        (self.folder / "launch.json").write_bytes(msgspec.json.encode(self.record))

    def phase(self, name: str, seconds: float, outcome: str | None = "done", progress: Progress | None = None) -> None:
        progress = progress or Progress()
        self.record.phases.append(
            PhaseRecord(phase=name, started=self.time, seconds=seconds, progress=progress, outcome=outcome)  # type: ignore[arg-type]
        )
        self.tell(PhaseChange(phase=name))
        self.tell(PhaseChange(phase=name, progress=progress, seconds=seconds, outcome=outcome), seconds)  # type: ignore[arg-type]

    def end_phases(self, outcome: str) -> None:
        """As every phase ends that was open when its launch ended."""
        for record in self.record.phases:
            if record.outcome is None:
                record.outcome = outcome  # type: ignore[assignment]
                self.tell(PhaseChange(phase=record.phase, seconds=record.seconds, outcome=record.outcome))

    def log(self, *lines: str) -> None:
        path = self.folder / "engine.log"
        first = path.read_bytes().count(b"\n") + 1 if path.exists() else 1
        with path.open("ab") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        self.tell(LogLines(first=first, lines=lines))

    def process_ended(self, end: ProcessEnd) -> None:
        self.record.process_ends.append(end)
        self.tell(ProcessEnded(end))

    def diagnose(self, diagnosis: Diagnosis = DIAGNOSIS) -> None:
        self.record.diagnosis = diagnosis
        (self.folder / "diagnosis.json").write_bytes(msgspec.json.encode(diagnosis))
        self.tell(DiagnosisReport(diagnosis))


def ready_launch(home: Home, launch_id: str, **kwargs: object) -> WrittenLaunch:
    launch = WrittenLaunch(home, launch_id, **kwargs)  # type: ignore[arg-type]
    launch.phase(*PHASES[0])
    launch.change(State.STARTING)
    launch.log("INFO core starts", "INFO reading weights")
    for name, seconds in PHASES[1:]:
        launch.phase(name, seconds)
    launch.change(State.READY)
    return launch


def failed_launch(home: Home, launch_id: str, **kwargs: object) -> WrittenLaunch:
    """One whose graphs crashed."""
    launch = WrittenLaunch(home, launch_id, **kwargs)  # type: ignore[arg-type]
    launch.phase(*PHASES[0])
    launch.change(State.STARTING)
    launch.log("INFO core starts", "INFO reading weights", "CUDA error: an illegal memory access was encountered")
    for name, seconds in PHASES[1:4]:
        launch.phase(name, seconds)
    launch.phase("graphs", 0.6, "failed", Progress(done=3, total=8, unit="graphs"))
    launch.diagnose()
    launch.change(State.FAILED, "The core ended with exit code 1.")
    return launch
