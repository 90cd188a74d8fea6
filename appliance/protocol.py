"""What an appliance says of its launches: events, findings, diagnoses, and its present state.

The supervisor writes `Event`s to `launches/<id>/events.jsonl` and sends the same lines as server-sent events. Findings
and diagnoses are written by checks and read by people and programs. Times are seconds since the epoch, or durations
(`_s`). What front door and core say to each other is in `core_protocol.py`.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

import msgspec

# --------------------------------------------------------------------------------- What a check or a failed launch says


class Severity(enum.StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Fix(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change that a program can apply (`patch`), or a command for a person that makes it (`command`); `text` says it
    in words. `look` is a command that changes nothing, and only shows more.

    `patch` maps dotted profile keys to new values: `{"backends.moe": "auto", "max-model-len": 4096}`; None removes the
    key, so that its default holds again. `options` are patches of which a person chooses one. `blocked` is what
    preflight says against the start with the patch; where that is because of it, there is no patch."""

    text: str
    patch: dict[str, Any] | None = None
    command: str | None = None
    look: str | None = None
    options: tuple[dict[str, Any], ...] = ()
    blocked: tuple[str, ...] = ()

    @property
    def mends(self) -> bool:
        """Whether it can be done as it stands."""
        return bool(self.patch or self.command)


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a preflight check reports. `id` is stable and names the check: `tokenizer-missing`. `transient`: it may be
    gone once what runs now has ended, or by itself."""

    id: str
    severity: Severity
    message: str
    field: str | None = None
    value: Any = None
    evidence: tuple[str, ...] = ()
    fix: Fix | None = None
    transient: bool = False


class EvidenceLine(msgspec.Struct, frozen=True):
    """A line of an engine's log; `number` counts from 1."""

    number: int
    text: str


class Outcome(enum.StrEnum):
    """What a log proves of its engine at the log's end."""

    SERVES = "serves"
    FAILED = "failed"
    NOT_READY = "not-ready"
    UNCLEAR = "cannot-tell"  # no engine's log, or too little of one


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine's log means. `family` and `cause` are None where the cause is not known. A fix stands only where
    something is wrong: of an engine that failed, or that is not ready because it waits."""

    summary: str
    outcome: Outcome = Outcome.FAILED
    family: str | None = None
    cause: str | None = None
    evidence: tuple[EvidenceLine, ...] = ()
    fix: Fix | None = None


# ------------------------------------------------------------------------------------------------------------- A launch


class State(enum.StrEnum):
    IDLE = "idle"
    PREFLIGHT = "preflight"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"
    HUNG = "hung"


class Phase(enum.StrEnum):
    """The phases of a launch, in order. `core start` is of the native engine; `engine start` and `compile` of vLLM."""

    PREFLIGHT = "preflight"
    CORE_START = "core start"
    ENGINE_START = "engine start"
    WEIGHTS = "weights"
    COMPILE = "compile"
    CACHE = "cache"
    GRAPHS = "graphs"
    SELF_TEST = "self-test"
    READY = "ready"


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a phase is: `done` of `total`, in `unit` ("bytes", "graphs", "prompts"). Total 0: unknown."""

    done: int = 0
    total: int = 0
    unit: str = ""


class StateChange(msgspec.Struct, frozen=True, kw_only=True, tag="state", omit_defaults=True):
    state: State
    reason: str = ""


class PhaseChange(msgspec.Struct, frozen=True, kw_only=True, tag="phase", omit_defaults=True):
    """A phase began, moved or ended. `seconds` is how long it has taken so far; `outcome` is set once, at its end."""

    phase: str
    progress: Progress = Progress()
    seconds: float = 0.0
    outcome: Literal["done", "failed", "skipped"] | None = None


class FindingReport(msgspec.Struct, frozen=True, tag="finding"):
    finding: Finding


class LogLines(msgspec.Struct, frozen=True, kw_only=True, tag="log"):
    """Lines `first` .. `first + len(lines) - 1` of engine.log (counted from 1) have been written."""

    first: int
    lines: tuple[str, ...]


class DiagnosisReport(msgspec.Struct, frozen=True, tag="diagnosis"):
    diagnosis: Diagnosis


class ErrorLogged(msgspec.Struct, frozen=True, tag="error-logged"):
    line: EvidenceLine  # the log's first, while the engine starts, that reports an error; it may be survived


class ProcessEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a process of the engine ended. `status` is as subprocess has it (negative for a signal), None where the
    kernel does not tell. `line` is the last line of the log that had been read by then. `aftermath`: the engine had
    ended before it, or Ingot ended it; `by_ingot`: the latter. `out_of_memory`: whether the kernel killed it because
    memory ran out, None where that is unknown; `kernel` is its record of that."""

    pid: int
    name: str
    time: float
    status: int | None = None
    line: int = 0
    aftermath: bool = False
    by_ingot: bool = False
    out_of_memory: bool | None = None
    kernel: str = ""


class ProcessEnded(msgspec.Struct, frozen=True, tag="process-end"):
    """A later one about the same process replaces the earlier one: the kernel's record is read last."""

    end: ProcessEnd


class StepKind(enum.StrEnum):
    """How a step was computed, and where it was not by a CUDA graph, why."""

    GRAPH = "graph"  # of decodes only
    MIXED_GRAPH = "mixed-graph"  # with tokens of prompts
    PREFILL = "prefill"  # it has tokens of prompts, which no graph of this model holds
    WHOLE_PROMPT = "whole-prompt"  # scores or embeddings are made of all tokens of a prompt
    TOO_LARGE = "too-large"  # no graph has such room (tokens, prompts, sequences, context), or had memory left
    NOT_CAPTURED = "not-captured"  # its graph is not there yet, nor a larger one that would do
    EAGER = "eager"  # the engine has no graphs


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine does now. Rates are over the last second; `cache_usage` is a share of 1. Counted since it started
    are `steps` by their `StepKind` (empty where the engine does not say), `preemptions`, prompt tokens looked up and
    found in the prefix cache (`cache_queries`, `cache_hits`), and tokens that were drafted, and accepted of these."""

    running: int = 0
    waiting: int = 0
    prompt_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    cache_usage: float = 0.0
    prefix_cache_hit_rate: float = 0.0
    preemptions: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    steps: dict[StepKind, int] = {}


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """Once a second from a living core. Not written to events.jsonl; its sequence number is the last event's."""

    load: Load


EventBody = StateChange | PhaseChange | FindingReport | LogLines | ErrorLogged | DiagnosisReport | ProcessEnded | Beat


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one launch. `sequence` counts from 1 within the launch; `id` is what `Last-Event-ID` carries."""

    launch: str
    sequence: int
    time: float
    body: EventBody

    @property
    def id(self) -> str:
        return f"{self.launch}/{self.sequence}"


class PhaseRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A phase as the present state shows it."""

    phase: str
    started: float
    seconds: float = 0.0
    progress: Progress = Progress()
    outcome: Literal["done", "failed", "skipped"] | None = None


class LaunchRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One attempt to run one revision, as far as it has come. Rewritten to `launches/<id>/launch.json` at each change
    of state. `attempt`: preflight refused it while another launch went on serving. `restart_of` is the launch that
    failed before it, where the supervisor started it again by itself. `requested_by` is the name of the API key whose
    request asked for it; `returned_after` such a launch that failed, so that this one runs again. `cut_off`: its front
    door ended before it could record an end, and a later one did. `process_ends` are in the order in which the
    processes ended. `first_error` is the first line of the start's log that reports one."""

    id: str
    profile: str
    revision: str = ""
    engine: str = "native"
    started: float
    state: State = State.PREFLIGHT
    since: float = 0.0
    reason: str = ""
    ended: float | None = None
    ready_after_s: float | None = None
    phases: list[PhaseRecord] = []
    findings: list[Finding] = []
    diagnosis: Diagnosis | None = None
    exit_status: str | None = None
    attempt: bool = False
    restart_of: str | None = None
    requested_by: str | None = None
    returned_after: str | None = None
    cut_off: bool = False
    process_ends: list[ProcessEnd] = []
    first_error: EvidenceLine | None = None


class ApplianceState(msgspec.Struct, kw_only=True):
    """The answer of `GET /appliance/state`. `launch` is what `state` speaks of; `attempt` is a launch that preflight
    refused while it served. `sealed` is False where the engine may compile kernels as it runs, None where there are
    none to compile: on the CPU, or while nothing is served. `requests` are those in flight, without the engine's own.
    While it drains, `drain_until` is when these are ended; `replaced_by` is the profile that a request asked for."""

    state: State
    since: float
    version: str
    sealed: bool | None = None
    launch: LaunchRecord | None = None
    attempt: LaunchRecord | None = None
    load: Load = Load()
    requests: int = 0
    drain_until: float | None = None
    replaced_by: str | None = None
    models: list[str] = []
    max_model_len: int | None = None
    last_event: str | None = None  # the id of the newest event this answer contains: follow /appliance/events after it
