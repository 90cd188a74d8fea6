"""What went wrong, and with what, of an exception that no row knows: two axes that are read apart and said together.

What: by the exception's type, then its words. Whose: by the exception's own library, then the innermost place that
belongs to a domain. The rows of each axis are tried in order.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from appliance.diagnosis.stripping import without_advice, without_dumps
from appliance.diagnosis.traceback_reader import LoggedException

MAX_TEXT = 2000
MAX_FRAMES = 30  # a parser of YAML or JSON may be 20 deep


class What(NamedTuple):
    """`says` follows the name of what it happened to. `types` are of exceptions; `words` stand in their messages."""

    name: str
    says: str
    fix: str
    types: re.Pattern[str]
    words: re.Pattern[str]


class Whose(NamedTuple):
    """`places` are of frames or of an exception's module. A row of a `displaced` family, or of such
    a name, speaks of something else.
    `without` is the fix where it is not known what happened: a launch can do without it."""

    name: str
    family: str
    noun: str
    places: re.Pattern[str]
    displaced: tuple[str, ...]
    without: str = ""


def _what(name: str, says: str, fix: str, types: str, words: str) -> What:
    return What(name, says, fix, re.compile(types), re.compile(words, re.IGNORECASE))


def _whose(name: str, family: str, noun: str, places: str, *displaced: str, without: str = "") -> Whose:
    return Whose(name, family, noun, re.compile(places), displaced, without)


_NEVER = r"(?!)"
WHATS = (
    _what("unfit", "does not fit this release of the engine",
          "Parts of the engine do not fit each other: use its container image, or another release of it.",
          r"AttributeError|NameError", _NEVER),
    _what("missing", "is missing or incomplete", "Restore what is missing, or correct the setting that names it.",
          r"FileNotFoundError|ModuleNotFoundError|NotFoundError$",
          r"no such file|does(?: not|n't) (?:exist|appear to have)|\bmissing\b|(?:not|cannot be) found"
          r"|(?:can(?:not|'t)|could not|unable to|failed to) (?:find|import)"
          r"|\bno (?:\w{1,40} ){1,3}(?:was |were )?found"),
    _what("unreadable", "cannot be read", "Check its permissions, and that it is mounted where the engine runs.",
          r"PermissionError|IsADirectoryError|NotADirectoryError",
          r"permission denied|access denied|(?:can(?:not|'t)|could not|unable to|failed to) (?:be )?(?:open|read)\b"
          r"|is (?:not )?a (?:directory|file)\b"),
    _what("unparsable", "cannot be parsed", "Correct it where the message points, or restore the original file.",
          r"JSONDecodeError|YAMLError|ParserError|ScannerError|TOMLDecodeError|SyntaxError|UnicodeDecodeError",
          r"\bpars(?:e|ing)\b|syntax error|expecting (?:value|property|',')|malformed|unexpected (?:token|end|char|')"
          r"|(?:invalid|not (?:a )?valid) (?:json|yaml|utf-8|toml|xml)|codec can't decode|corrupt|truncated|damaged"
          r"|PEM lib|no start line|values mismatch|no certificate or crl"),
    _what("unreachable", "cannot be reached", "Check the address, and the network between the two.",
          r"ConnectionError|ConnectionRefusedError|TimeoutError|gaierror|ConnectTimeout",
          r"connection (?:refused|timed out|error|failed)|unreachable|name resolution|timed out|could not connect"),
    _what("exhausted", "has run out of something", "Free what the message names, raise its limit, or ask for less.",
          _NEVER,
          r"no space left|out of memory|too many open|quota|exhausted|insufficient|not enough|no (?:free|more) \w"),
    _what("too-large", "is too large", "Reduce the value to what the message allows, or remove the setting.",
          r"OverflowError",
          r"\bexceed|(?:larger|greater|longer|more|bigger) than|too (?:large|long|many|big|high)|out of range"),
    _what("unsupported", "is not supported here", "Remove the setting that asks for it, or choose what is supported.",
          r"NotImplementedError",
          r"(?:not|n't|un)[ -]?(?:yet )?support|only supports?|not (?:yet )?implemented|not (?:available|compatible)"
          r"|incompatible|requires? (?:a |an |at least )?\w"),
    _what("refused", "was refused", "Correct the value, or remove the setting to use its default.",
          r"ValidationError",
          r"\bmust\b|\bshould\b|unable to (?:configure|apply|use|set)"
          r"|invalid|unrecogni[sz]ed|unexpected (?:keyword|argument)|not (?:a )?valid|unknown"
          r"|\bexpect|not (?:permitted|allowed)|not (?:one of|in)\b|\bgot\b|could not convert|not divisible"),
    _what("mismatched", "does not fit what it is used with",
          "Two values that have to agree do not. Compare those that the message names with the model's config.json and "
          "with the launch's settings.",
          _NEVER,
          r"mismatch|(?:does|do|did)(?: not|n't) (?:match|fit|equal|agree)|inconsistent|\bdiffer(?:s|ent|ing)?\b|[!=]="
          r"|must (?:match|equal|agree|be (?:equal|the same))|divi(?:sible|de evenly)|multiple of"
          r"|same (?:\w{1,20} )?(?:shape|dtype|device|size|length|number)|(?:must|should) have (?:shape|matching)"
          r"|\bexpect\w{0,4} .{0,160}\b(?:got|but|found|received)\b"),
    _what("wrong-kind", "has a value of a wrong kind",
          "Correct that value where it is set: in the launch's settings, or in the model's config.json.",
          _NEVER,
          r"(?:must|should|needs? to|expected to|has to) be (?:either )?(?:an? |of )?(?:type|str|string|int|integer"
          r"|float|bool|boolean|number|tensor|list|dict|tuple|torch\b|instance|callable)|\bof type\b|\binstance of\b"),
    _what("unset", "lacks something that has to be set or made first",
          "Set what the message asks for. If the launch does not use it, remove the setting that turned it on.",
          _NEVER,
          r"(?:must|needs? to|should|has to|have to) (?:be |have been |already be )?(?:set|provided|configured"
          r"|specified|initiali[sz]ed|given|enabled|passed|registered|defined|present|installed|built|prepared|bound|included"
          r"|contain|have|provide|define|implement)\b"
          r"|(?:is|are|was|were|been) (?:None|required|needed|empty|unset|absent)\b|\brequire[sd]?\b|\bneeds?\b"
          r"|(?:is|are|was|were|has|have|been)(?: not|n't) (?:been )?(?:set|initiali[sz]ed|registered|configured"
          r"|provided|enabled|given|loaded|built|ready|defined|bound|open|started|running|allocated)"),
    _what("out-of-bounds", "has a value outside its bounds",
          "Bring it within the bounds that the message gives: in the launch's settings, or in the model's config.json.",
          _NEVER,
          r"(?<!\S)[<>]=? |\b(?:non-)?(?:negative|positive)\b|at (?:least|most) \w|\bbetween\b"
          r"|(?:less|fewer|smaller) than"
          r"|\bin \[|\bpower of|must (?:not )?be (?:0|1|zero|one)\b"),
    _what("repeated", "is there twice", "Remove one of the two that the message names.", _NEVER,
          r"\balready\b|duplicate|must be unique|more than (?:one|once)|mutually exclusive|at the same time"),
    _what("not-known", "has a name that this release does not know",
          "Correct that name where it is set: in the launch's settings, or in the model's config.json.",
          _NEVER, r"\bunknown\b|unrecogni[sz]ed|\bnot one of\b|\bnot in [\[{(_]"),
)  # fmt: skip
WRONG_KIND = next(what for what in WHATS if what.name == "wrong-kind")
# Python's own words for it: a plain value where an object was expected.
OF_A_WRONG_KIND = re.compile(r"'(?:str|int|float|bool|list|dict|tuple|NoneType)' object has no attribute")
# Of a place in the engine's source whose words say nothing of what went wrong: a condition that does not hold, or
# anything else.
_EITHER = ("Correct the settings and the model's files that the message names. If they are right, use another release "
           "of the engine.")  # fmt: skip
CHECK_FAILED = _what("check-failed", "failed a check of the engine", _EITHER, _NEVER, _NEVER)
ERROR_REPORTED = _what("error-reported", "reports an error", _EITHER, _NEVER, _NEVER)
WHOSES = (
    _whose("chat-template", "model-config", "The chat template", r"\bjinja2?\b|chat_template|chat_utils"),
    _whose("tls", "config", "The TLS certificate or key",
           r"create_ssl_context|create_default_context|load_(?:cert_chain|verify_locations)"
           r"|entrypoints/ssl\.py", "offline"),
    _whose("logging", "config", "The logging configuration", r"/logging/config\.py|vllm/logger\.py", "config-not-json",
           "config-missing", "package-missing", "call-does-not-fit"),
    _whose("adapter", "config", "The LoRA adapter", r"/lora/|/peft/|lora_\w{1,40}\.py", "weights",
           "config-not-json", "config-missing",
           without="Check that the adapter belongs to this model, or start without it."),
    _whose("draft-model", "config", "The draft model", r"spec_decode|speculative|eagle",
           without="Use a draft model made for this model, or turn speculative decoding off."),
    _whose("parser", "config", "The tool-call or reasoning parser", r"tool_parser|reasoning_parser|/reasoning/",
           without="Choose the parser made for this model, or start without it."),
    _whose("structured-output", "config", "The backend of structured output",
           r"structured_output|xgrammar|llguidance|outlines",
           without="Choose another backend of structured output, or let the engine choose."),
    _whose("multimodal", "model-config", "The multimodal processor",
           r"/multimodal/|image_processing|feature_extraction|processing_\w{1,40}\.py|video_processing"),
    _whose("tokenizer", "model-config", "The tokenizer", r"tokeniz|sentencepiece|tiktoken|mistral_common",
           "config-not-json"),
    _whose("compile-cache", "compile", "The compiled model",
           r"torch/_(?:inductor|dynamo|functorch)|vllm/compilation/(?!decorators)"),
    _whose("quantisation", "quant-dtype", "The quantisation", r"/quantization/|/quantizers?/|bitsandbytes"),
    _whose("connector", "backend", "The KV cache connector", r"kv_transfer|kv_connector|lmcache|\bnixl",
           without="Check the connector's settings and its peers, or start without it."),
    _whose("weights", "weights", "The checkpoint", r"model_loader|weight_utils|safetensors|gguf|load_weights"),
    _whose("model-part", "model-config", "A part of the model",
           r"/models/\w{1,60}\.py\", line \d{1,9}, in __init__"),
    _whose("model-value", "model-config", "A value in the model's configuration", r"\.StrictDataclass\w{1,60}Error$",
           "config"),
    _whose("model-config", "model-config", "The model's configuration",
           r"transformers_utils/config|configuration_\w{1,40}\.py|vllm/config/model|model_config\.py|configs?/model"),
    _whose("shared-memory", "nccl", "The engine's shared memory", r"multiprocessing/shared_memory|shm_\w{1,40}\.py"),
    _whose("collective", "nccl", "The communication between the GPUs",
           r"distributed_c10d|vllm/distributed|pynccl|parallel_state|sglang/srt/distributed"),
    _whose("ray", "multi-node", "Ray", r"site-packages/ray/|\bray\.exceptions|ray_utils|ray_executor"),
    _whose("kernel-library", "backend", "A kernel library",
           r"flashinfer|flash_attn|deep_gemm|/triton/|attention/backends|layers/attention|fused_moe"),
    _whose("device", "driver", "The device", r"vllm/platforms/|torch/cuda/|pynvml|nvml"),
    _whose("engine-socket", "port", "A socket between the engine's processes", r"\bzmq[/.]"),
    _whose("socket", "port", "The server's socket", r"uvicorn/|create_server_\w{0,20}socket|asyncio/base_events"),
    _whose("environment", "config", "A variable of the environment", r"\bin _?parse_\w{1,60}_env\b"),
    _whose("arguments", "config", "An argument",
           r"arg_utils|argparse|server_args|cli_args|vllm/config/|entrypoints/cli|click/|pydantic"),
)  # fmt: skip


# Whose it is by the message's own words, where the place says no more than that a setting was read.
SPOKEN_OF = tuple(
    (next(whose for whose in WHOSES if whose.name == name), re.compile(words, re.IGNORECASE))
    for name, words in (
        ("adapter", r"\blora\b|\badapters?\b"),
        ("chat-template", r"chat.template"),
        ("tls", r"\bssl\b|certificate"),
        ("draft-model", r"draft model|speculative"),
        ("parser", r"(?:tool|reasoning)[ _-](?:call[ _-])?parser|\breasoning\b"),
        ("connector", r"\bkv[ _-]connector|\bconnector\b"),
        ("tokenizer", r"\btokenizer\b"),
    )
)
GENERAL = "arguments"
# Who speaks, by a program's or library's own name; of a call that does not fit, what it names are parameters. A row of
# such a family, though it fits the words, is of something else.
SPEAKERS = (
    (re.compile(r"\bnvidia-container-(?:cli|runtime)|\bnvidia-ctk\b"), ("abi", "config", "model-config", "weights")),
    (re.compile(r"\bUCX {1,4}(?:ERROR|FATAL)\b|\bUCX error\b"), ("abi", "driver", "host", "port")),
    (
        re.compile(r"^TypeError: [\w.]{1,80}\(\) (?:got an unexpected keyword|missing \d|takes \d)"),
        ("driver", "memory", "model-config", "multi-node", "nccl", "offline", "quant-dtype", "weights"),
    ),
)


class Axes(NamedTuple):
    what: What | None
    whose: Whose | None

    @property
    def cause(self) -> str | None:
        """None where one of the two is not known."""
        return f"{self.whose.name}-{self.what.name}" if self.what and self.whose else None


def axes_of(exception: LoggedException) -> Axes:
    placed = whose_of(exception)
    if placed is not None and placed.name != GENERAL:
        return Axes(what_of(exception), placed)
    said = without_advice(without_dumps(exception.message[:MAX_TEXT]))
    spoken = next((whose for whose, words in SPOKEN_OF if words.search(said)), None)
    return Axes(what_of(exception), spoken or placed)


@functools.lru_cache(maxsize=256)
def displaced_by_speaker(text: str) -> tuple[str, ...]:
    """The families of rows that a message cannot be about, by whom it names as its speaker."""
    return next((families for speaker, families in SPEAKERS if speaker.search(text)), ())


def what_of(exception: LoggedException) -> What | None:
    return next(whats_said(exception.message, exception.type), None)


def what_said(message: str) -> What | None:
    """By its words alone."""
    return next(whats_said(message), None)


def whats_said(message: str, kind: str = "") -> Iterator[What]:
    """All that fit, by an exception's type and by the words of its message; the likeliest first."""
    said = without_advice(without_dumps(message[:MAX_TEXT]))
    if OF_A_WRONG_KIND.match(said):
        yield WRONG_KIND
    if kind:
        yield from (what for what in WHATS if what.types.search(kind))
    yield from (what for what in WHATS if what.words.search(said))


def whose_of(exception: LoggedException) -> Whose | None:
    places = (place.text for place, _ in reversed(exception.frames[-MAX_FRAMES:]))
    return next((whose for place in (exception.type, *places) if (whose := _owner(place)) is not None), None)


@functools.lru_cache(maxsize=256)
def _owner(place: str) -> Whose | None:
    return next((whose for whose in WHOSES if whose.places.search(place)), None)
