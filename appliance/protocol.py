"""The words that cross a process: requests, outputs, launch events, findings.

Three conversations use them. Front door and core talk over ZeroMQ in msgpack (`ToCore`, `FromCore`). The supervisor
writes `Event`s to `launches/<id>/events.jsonl` and sends the same lines as server-sent events. Findings and diagnoses
are written by checks and read by people and programs. Times are seconds since the epoch, or durations (`_s`).
"""

from __future__ import annotations

import enum
from typing import Any, Literal

import msgspec

from appliance.thinking_budget import ThinkingBudget

# --------------------------------------------------------------------------------- What a check or a failed launch says


class Severity(enum.StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Fix(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change that a program can apply (`patch`), or a command for a person (`command`); `text` says it in words.

    `patch` maps dotted profile keys to new values: `{"backends.moe": "auto", "max-model-len": 4096}`; None removes the
    key, so that its default holds again. `options` are patches of which a person chooses one. `blocked` is what
    preflight says against the start with the patch; where that is because of it, there is no patch."""

    text: str
    patch: dict[str, Any] | None = None
    command: str | None = None
    options: tuple[dict[str, Any], ...] = ()
    blocked: tuple[str, ...] = ()


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


# --------------------------------------------------------------------------------------------------- Front door -> core


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, tag="configure"):
    """The first message to a core, every value resolved. `backends` names the one of each op that the model needs."""

    model_folder: str
    device: str  # "cpu", or a CUDA device name such as "cuda:0"
    dtype: str  # "float32", "bfloat16" or "float16"
    kv_cache_dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int  # of layers that keep every token; where all have windows, of those with the longest
    window_blocks: dict[int, int] = {}  # of the others, by their window; layers whose window is not here have the first
    num_snapshots: int = 0  # rows for copies of states, beside one for each sequence that runs
    prefix_caching: bool = True
    enforce_eager: bool = True
    prefill_graphs: bool = False  # also for steps with prompts; all backends must be able to be captured so
    drafts: Literal["none", "ngram", "mtp"] = "none"  # what guesses the next tokens
    num_speculative_tokens: int = 0  # the most of them for each request in a step; 0 with "none"
    keep_fp8: bool = False  # weights in block-scaled FP8 stay so; else they are multiplied out as they are loaded
    backends: dict[str, str] = {}  # op -> backend
    places: dict[str, str] = {}  # site, as `kernels.site_key` names it -> backend; before `backends`
    ranks: int = 1  # processes that share the model; the first speaks for all, and has the first device
    environment: dict[str, str] = {}  # to be set before the device is first touched, such as CUDA_VISIBLE_DEVICES
    cast: str | None = None  # the folder to be sealed to before a kernel is imported


# The least and the most that each number of `SamplingParams` may be, in a request as in a profile; they are OpenAI's,
# where it has the field. A request shares its step with others, so what it asks for must leave its scores finite.
SAMPLING_LIMITS: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 10),
}
BIAS_LIMITS = -100.0, 100.0
MAX_BIASES = 300  # of one request
Pooling = Literal["last", "mean"]  # how the hidden states of a text become its embedding


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are sampled. temperature 0 is greedy; top_k 0 and top_p 1 and min_p 0 are off; a seed fixes a
    request's random numbers whatever is batched with it. `min_tokens` come before the token that stops the answer.
    `logprobs` is how many alternatives to report besides the sampled token (None: no logprobs at all). `logit_bias` is
    added to the logits of these token ids, after penalties and before temperature. The answer keeps to the `grammar`,
    in the form of llguidance, and ends where it does."""

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt
    logit_bias: dict[int, float] = {}
    grammar: str | None = None
    thinking: ThinkingBudget | None = None


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """Generate; or embed, where `pooling` is given, and then `max_tokens` is 1. Lower `priority` runs first; equal ones
    in order of arrival. A `probe` is the appliance's own question (of the self-test, or whether the engine still
    generates), and no load. Requests share cached prompts only where their `cache_salt` is the same."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    probe: bool = False
    pooling: Pooling | None = None


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """The client went away or has all it needs: the request's slot and blocks are freed before the next step."""

    request_id: str


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the core at once; the supervisor has drained it if it wanted to."""


ToCore = EngineConfig | Submit | Abort | Shutdown

# --------------------------------------------------------------------------------------------------- Core -> front door


class TokenLogprob(msgspec.Struct, frozen=True, omit_defaults=True):
    """The natural log of the probability of a sampled token, and the most likely alternatives, best first.
    Probabilities are the model's own: before temperature, penalties and truncation."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class PromptLogprobs(msgspec.Struct, frozen=True, omit_defaults=True):
    """The same of a prompt's tokens from the second on, in columns: made and read in a few large steps. Each token has
    equally many alternatives, and these follow each other in one list."""

    logprobs: list[float] = []
    top_token_ids: list[int] = []
    top_logprobs: list[float] = []

    @property
    def num_alternatives(self) -> int:
        return len(self.top_token_ids) // max(len(self.logprobs), 1)


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step added to one request. The stop token itself is part of `token_ids` but not of the text:
    `stop_token_id` says that the last one is it. The first output of a request says how long it was queued, until its
    first step was launched, and how long its prefill took from there."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: PromptLogprobs | None = None  # with the first output
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    error: str | None = None
    is_refusal: bool = False  # the error is one of what the request asks for
    queued_s: float | None = None
    prefill_s: float | None = None
    embedding: bytes | None = None  # float32, little-endian, not normalised; in the place of tokens


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """The core's process runs and waits for its configuration."""

    pid: int
    python: str


class CorePhase(msgspec.Struct, frozen=True, kw_only=True, tag="core-phase"):
    phase: Phase
    progress: Progress = Progress()
    outcome: Literal["done", "skipped"] | None = None


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The model can generate. Sizes in bytes; `selection` is what was bound: op -> backend, and places that differ."""

    vocab_size: int
    num_blocks: int
    block_size: int
    weight_bytes: int
    cache_bytes: int
    selection: dict[str, str] = {}
    versions: dict[str, str] = {}


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    outputs: list[TokenOutput]  # all that one step produced


class CoreBeat(msgspec.Struct, frozen=True, kw_only=True, tag="core-beat"):
    """Once a second, from a thread of its own that goes on while the main loop is stuck in native code: `where` names
    what that loop is doing ("step" is one step of the engine), and `busy_s` how long it has been doing it."""

    where: str
    busy_s: float
    load: Load


class Fatal(msgspec.Struct, frozen=True, kw_only=True, tag="fatal"):
    """The core's first exception, told before it exits."""

    exception: str  # its class, as `RuntimeError`
    message: str
    traceback: str
    stacks: str = ""  # of all its processes, as `engine_process.stacks` writes them, where a rank hangs


AboutCore = Hello | CorePhase | Loaded | CoreBeat | Fatal
FromCore = AboutCore | Outputs


def encode(message: ToCore | FromCore) -> bytes:
    return msgspec.msgpack.encode(message)


_to_core_decoder: msgspec.msgpack.Decoder[ToCore] = msgspec.msgpack.Decoder(ToCore)
_from_core_decoder: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)


def decode_to_core(data: bytes | memoryview) -> ToCore:
    return _to_core_decoder.decode(data)


def decode_from_core(data: bytes | memoryview) -> FromCore:
    return _from_core_decoder.decode(data)
