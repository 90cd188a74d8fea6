"""The messages between front door and core, which talk over ZeroMQ in msgpack: `ToCore` and `FromCore`, and what they
are made of."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from appliance.protocol import Load, Phase, Progress
from appliance.thinking_budget import ThinkingBudget

# --------------------------------------------------------------------------------------------------- Front door -> core


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, tag="configure"):
    """The first message to a core, every value resolved. `backends` names the one of each op that the model needs."""

    model_folder: str
    device: str  # "cpu", or a CUDA device name such as "cuda:0"
    dtype: str  # "float32", "bfloat16" or "float16"
    kv_cache_dtype: str
    index_key_dtype: str = "auto"  # of an indexer's keys, as the profile says it
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
