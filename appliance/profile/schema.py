"""The settings of a profile as rows, and the frozen structs that a valid document becomes.

A default stands in one place: its row here. Keys are dotted where the document nests (`backends.attention`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from appliance import engines
from appliance.core_protocol import SAMPLING_LIMITS
from appliance.profile import on_request, parser_names, speculative
from appliance.profile.setting import REQUIRED, Setting, Type
from kernels.catalogue import backend_names
from kernels.selection import AUTO

__all__ = [
    "BUNDLED_MODEL", "BY_KEY", "DEVICE_PATTERN", "NAME_PATTERN", "REQUIRED", "SCHEMA_VERSION", "SECTIONS", "SETTINGS",
    "ModelReference", "Problem", "Profile", "ProfileError", "RaySettings", "Setting", "Type", "VllmOptions",
]  # fmt: skip

SCHEMA_VERSION: Final = 1
BUNDLED_MODEL: Final = "bundled"

# One character class for both ends of the wall: Python's `re` and a JSON Schema's ECMA 262 read it alike.
NAME_PATTERN: Final = r"^[a-z0-9](?:[a-z0-9.-]{0,62}[a-z0-9])?$"
_UUID: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
DEVICE_PATTERN: Final = rf"^(?:auto|cpu|GPU-{_UUID}|MIG-{_UUID})$"


def _backend(op: str, help_text: str) -> Setting:
    return Setting(
        key=f"backends.{op}",
        type=Type.TEXT,
        default=AUTO,
        allowed=(AUTO, *backend_names(op)),
        group="Backends",
        help=help_text,
    )


def _sampling(name: str, type_: Type, help_text: str, **limits: float) -> Setting:
    return Setting(
        key=f"sampling-defaults.{name}",
        type=type_,
        default=None,
        none="not set: the API's own default",
        group="Sampling defaults",
        help=help_text,
        **limits,  # type: ignore[arg-type]
    )


def _sampling_number(name: str, help_text: str) -> Setting:
    """Within the limits of a request."""
    minimum, maximum = SAMPLING_LIMITS[name.replace("-", "_")]
    return _sampling(name, Type.NUMBER, help_text, minimum=minimum, maximum=maximum)


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        key="schema",
        type=Type.INTEGER,
        default=SCHEMA_VERSION,
        allowed=(SCHEMA_VERSION,),
        group="Profile",
        help="The version of this format.",
    ),
    Setting(
        key="name",
        type=Type.TEXT,
        default=REQUIRED,
        pattern=NAME_PATTERN,
        pattern_help="lower-case letters, digits, dots and dashes, starting and ending with a letter or digit",
        max_length=64,
        group="Profile",
        help="The profile's name in Ingot, at most 64 characters.",
    ),
    Setting(
        key="model.path",
        type=Type.TEXT,
        default=REQUIRED,
        max_length=1024,
        group="Model",
        help=f"The model's folder, relative to the models folder. `{BUNDLED_MODEL}` is the model that ships with "
        "Ingot.",
    ),
    Setting(
        key="model.digest",
        type=Type.TEXT,
        default=None,
        none="any content is accepted",
        pattern=r"^sha256:[0-9a-f]{64}$",
        pattern_help="sha256: and 64 hexadecimal digits",
        group="Model",
        help="If set, the launch is refused unless config, tokenizer, tensor headers and file sizes match this digest.",
    ),
    Setting(
        key="served-model-name",
        type=Type.TEXT,
        default=None,
        none="the profile's name",
        pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9._:/-]*[A-Za-z0-9])?$",
        pattern_help="letters, digits and . _ : / -, starting and ending with a letter or digit",
        max_length=128,
        group="Model",
        help="The name clients send as `model`.",
    ),
    Setting(
        key="engine",
        type=Type.TEXT,
        default=engines.NATIVE.name,
        allowed=engines.NAMES,
        group="Engine",
        help="`native` is Ingot's own engine; `vllm` is for models and clusters it does not support.",
    ),
    Setting(
        key="device",
        type=Type.TEXT,
        default="auto",
        pattern=DEVICE_PATTERN,
        pattern_help="auto, cpu, GPU-<uuid> or MIG-<uuid>",
        group="Engine",
        help="`auto` uses a GPU if there is one, otherwise the CPU. A UUID names one GPU or MIG slice.",
    ),
    Setting(
        key="dtype",
        type=Type.TEXT,
        default="auto",
        allowed=("auto", "float32", "bfloat16", "float16"),
        group="Engine",
        help="The number format of weights and activations. `auto`: the checkpoint's own on a GPU; on a CPU float32, "
        "or bfloat16 if that is the checkpoint's own and the processor supports it.",
    ),
    Setting(
        key="max-model-len",
        type=Type.INTEGER,
        default=None,
        none="the model's own limit, or what fits into memory",
        minimum=1,
        maximum=16_777_216,
        unit="tokens",
        group="Capacity",
        help="The longest prompt plus answer of one request, in tokens.",
    ),
    Setting(
        key="max-num-seqs",
        type=Type.INTEGER,
        default=256,
        minimum=1,
        maximum=4096,
        unit="requests",
        group="Capacity",
        help="How many requests run at the same time; others wait.",
    ),
    Setting(
        key="max-num-batched-tokens",
        type=Type.INTEGER,
        default=2048,
        minimum=1,
        maximum=1_048_576,
        unit="tokens",
        group="Capacity",
        help="The most tokens one step computes; longer prompts are computed in chunks.",
    ),
    Setting(
        key="block-size",
        type=Type.INTEGER,
        default=16,
        allowed=(8, 16, 32, 64, 128, 256),
        unit="tokens",
        group="Cache",
        help="Tokens per block of the KV cache.",
    ),
    Setting(
        key="gpu-memory-utilization",
        type=Type.NUMBER,
        default=0.9,
        above=0,
        maximum=1,
        group="Cache",
        help="The share of GPU memory for weights, KV cache and workspace together. Not used on a CPU.",
    ),
    Setting(
        key="kv-cache-dtype",
        type=Type.TEXT,
        default="auto",
        allowed=("auto", "float32", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"),
        group="Cache",
        help="The number format of the KV cache. `auto`: the same as `dtype`.",
    ),
    Setting(
        key="index-key-dtype",
        type=Type.TEXT,
        default="auto",
        allowed=("auto", "fp8", "mxfp4"),
        group="Cache",
        help="The number format of an indexer's keys, in models with sparse attention. `auto`: as the model's makers "
        "have them, `mxfp4` for DeepSeek V4 and `fp8` for others.",
    ),
    Setting(
        key="kv-cache-memory-bytes",
        type=Type.SIZE,
        default=None,
        none="sized from the available memory",
        minimum=1,
        maximum=1 << 50,
        unit="bytes",
        group="Cache",
        help='The size of the KV cache, in bytes or as text such as "2 GiB".',
    ),
    Setting(
        key="tensor-parallel-size",
        type=Type.INTEGER,
        default=1,
        minimum=1,
        maximum=64,
        unit="GPUs",
        group="Engine",
        help="The number of GPUs each layer is split over.",
    ),
    Setting(
        key="enforce-eager",
        type=Type.BOOLEAN,
        default=False,
        group="Engine",
        help="Run without CUDA graphs: slower, but easier to debug.",
    ),
    Setting(
        key="jit",
        type=Type.TEXT,
        default="allow",
        allowed=("allow", "forbid"),
        group="Engine",
        help="`forbid`: whatever would be compiled while the engine runs ends the launch and is named. A sealed engine "
        "compiles nothing in any case; vLLM does unless a cache pack holds everything.",
    ),
    Setting(
        key="prefix-caching",
        type=Type.BOOLEAN,
        default=True,
        group="Cache",
        help="Reuse the KV cache of earlier prompts that start with the same text.",
    ),
    Setting(
        key="prefix-cache-salt",
        type=Type.TEXT,
        default="none",
        allowed=("none", "api-key"),
        group="Cache",
        help="Who shares cached prompts: `none`, every client; `api-key`, only requests with the same API key, so that "
        "nobody can tell from response times what others have asked. Native engine only.",
    ),
    Setting(
        key="chat-encoding",
        type=Type.TEXT,
        default=parser_names.AUTO,
        allowed=(parser_names.AUTO, *parser_names.CHAT_ENCODINGS),
        group="Requests",
        help="How messages become the prompt. `auto`: by the model's chat template; without one, by the encoder of its "
        "family, in the revision that its folder says. Native engine only.",
    ),
    Setting(
        key="tool-call-parser",
        type=Type.TEXT,
        default=parser_names.AUTO,
        allowed=(parser_names.AUTO, parser_names.NONE, *parser_names.TOOL_CALLS),
        group="Requests",
        help="The format in which the model writes tool calls. `auto`: by its chat template and family. `none`: calls "
        "are left in the text. Native engine only.",
    ),
    Setting(
        key="reasoning-parser",
        type=Type.TEXT,
        default=parser_names.AUTO,
        allowed=(parser_names.AUTO, parser_names.NONE, *parser_names.REASONING),
        group="Requests",
        help="The format in which the model writes its reasoning. `auto`: by its chat template and family. `none`: "
        "reasoning is left in the text. Native engine only.",
    ),
    Setting(
        key="strict-requests",
        type=Type.BOOLEAN,
        default=False,
        group="Requests",
        help="Refuse API requests with unknown fields. Otherwise such fields are ignored and named in a header of the "
        "response. Native engine only.",
    ),
    Setting(
        key="response-store",
        type=Type.INTEGER,
        default=0,
        minimum=0,
        maximum=100_000,
        unit="answers",
        group="Requests",
        help="How many answers of /v1/responses are kept in memory for `previous_response_id`: those used last, up to "
        "64 MiB, each for the API key that asked. 0 keeps none. Native engine only.",
    ),
    *on_request.ROWS,
    *speculative.ROWS,
    _backend("attention", "The attention backend."),
    _backend("moe", "The backend for mixtures of experts."),
    _backend("linear", "The backend for linear layers."),
    _backend("gdn-prefill", "The backend for gated delta layers; vLLM chooses one for their prefill only."),
    _backend("sparse-mla", "The backend for sparse multi-head latent attention."),
    Setting(
        key="site-backends",
        type=Type.OPTIONS,
        default={},
        group="Backends",
        help="Backends for single sites of the model, by the names that `ingot explain` prints; they go before the "
        "settings above. Native engine only.",
    ),
    _sampling_number("temperature", "Randomness. 0 always picks the most likely token."),
    _sampling(
        "top-p", Type.NUMBER, "Sample from the most likely tokens that add up to this probability.", above=0, maximum=1
    ),
    _sampling(
        "top-k",
        Type.INTEGER,
        "Sample from this many of the most likely tokens; 0 means all.",
        minimum=0,
        maximum=1_000_000,
    ),
    _sampling_number("min-p", "Drop tokens less likely than this share of the most likely one."),
    _sampling_number("presence-penalty", "Penalise tokens that have already occurred."),
    _sampling_number("frequency-penalty", "Penalise tokens by how often they have occurred."),
    _sampling_number("repetition-penalty", "Divide the score of tokens already seen; 1 is off."),
    _sampling("max-tokens", Type.INTEGER, "The longest answer, in tokens.", minimum=1, maximum=16_777_216),
    Setting(
        key="on-failure",
        type=Type.TEXT,
        default="stop",
        allowed=("stop", "restart", "roll-back"),
        group="Engine",
        help="What happens when a launch of this profile fails: stop; restart an engine that was serving, unless it "
        "fails again for the same cause or three times in ten minutes; or roll back to the last profile that worked.",
    ),
    Setting(
        key="ray.address",
        type=Type.TEXT,
        default=None,
        none="no Ray: all GPUs are in this host",
        pattern=r"^(?:auto|[A-Za-z0-9.-]+:[0-9]{1,5}|\[[0-9A-Fa-f:]+\]:[0-9]{1,5})$",
        pattern_help="HOST:PORT as printed by `ray start --head`, or auto",
        group="Several hosts",
        help="The Ray cluster to run on; `auto` is the one running on this host. Only with `engine: vllm`.",
    ),
    Setting(
        key="ray.hosts",
        type=Type.INTEGER,
        default=1,
        minimum=1,
        maximum=1024,
        unit="hosts",
        group="Several hosts",
        help="The number of hosts; each brings the same number of GPUs.",
    ),
    Setting(
        key="ray.host-ip",
        type=Type.TEXT,
        default=None,
        none="the address of the default route",
        pattern=r"^[0-9A-Fa-f.:]{2,45}$",
        pattern_help="an IP address, such as 10.0.0.1",
        group="Several hosts",
        help="The address at which other hosts reach this one.",
    ),
    Setting(
        key="ray.network-interface",
        type=Type.TEXT,
        default=None,
        none="NCCL and gloo choose",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:@=^-]*$",
        pattern_help="the name of a network interface, such as eth0",
        max_length=128,
        group="Several hosts",
        help="The network interface between the hosts.",
    ),
    Setting(
        key="vllm.extra-args",
        type=Type.OPTIONS,
        default={},
        group="vLLM",
        help="More flags for `vllm serve`, without the leading dashes; only with `engine: vllm`.",
    ),
    Setting(
        key="vllm.environment",
        type=Type.OPTIONS,
        default={},
        group="vLLM",
        help="Environment variables for `vllm serve`; only with `engine: vllm`.",
    ),
)

BY_KEY: Final[Mapping[str, Setting]] = {setting.key: setting for setting in SETTINGS}

# The mappings of the document that hold settings: "model", "backends", "sampling-defaults", "ray", "vllm".
SECTIONS: Final[tuple[str, ...]] = tuple(dict.fromkeys(key.split(".")[0] for key in BY_KEY if "." in key))


class ModelReference(msgspec.Struct, frozen=True):
    """`path` is relative to the models folder, or `bundled`."""

    path: str
    digest: str | None


class RaySettings(msgspec.Struct, frozen=True):
    """`address` None: there is one host, and no Ray."""

    address: str | None = None
    hosts: int = 1
    host_ip: str | None = None
    network_interface: str | None = None


class VllmOptions(msgspec.Struct, frozen=True):
    """What is handed to `vllm serve` beside what the profile already says."""

    extra_args: dict[str, Any]
    environment: dict[str, str]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A valid document with every default filled in: made by `document.load`, which is where defaults are applied.

    `served_model_name` is always a name (the profile's own where none is given). `sampling_defaults` holds only what
    is set, under the attribute names of `protocol.SamplingParams`. None means what the row's `none` says.
    """

    name: str
    model: ModelReference
    served_model_name: str
    engine: str
    device: str
    dtype: str
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    gpu_memory_utilization: float
    kv_cache_dtype: str
    index_key_dtype: str
    kv_cache_memory_bytes: int | None
    tensor_parallel_size: int
    enforce_eager: bool
    jit: str
    prefix_caching: bool
    prefix_cache_salt: str
    chat_encoding: str
    tool_call_parser: str
    reasoning_parser: str
    strict_requests: bool
    response_store: int
    backends: dict[str, str]
    site_backends: dict[str, str]
    sampling_defaults: dict[str, float | int]
    on_failure: str
    vllm: VllmOptions
    ray: RaySettings = RaySettings()
    on_request: on_request.OnRequest = on_request.OnRequest()
    speculative_config: speculative.SpeculativeConfig = speculative.SpeculativeConfig()

    @property
    def forbids_jit(self) -> bool:
        return self.jit == "forbid"

    @property
    def engine_options(self) -> VllmOptions:
        """What `vllm` holds where the engine takes it; nothing where it is unused."""
        return self.vllm if engines.engine_named(self.engine).takes_options else VllmOptions({}, {})


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a document, where, and what to do. `field` is a dotted key, or "" for the document itself;
    `patch` does what `remedy` says, where a program can do it (see `protocol.Fix`)."""

    field: str
    value: Any
    message: str
    remedy: str
    patch: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.field}: {self.message} {self.remedy}" if self.field else f"{self.message} {self.remedy}"


class ProfileError(ValueError):
    """A document that cannot be a profile; `problems` names everything that is wrong with it."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
