"""Which part of an engine a place in its source belongs to, reviewed once: whose error it is, and of which family.

A row is a folder, a file, or the beginning of a file's name; the longest that fits counts. What a message says of a
narrower subject comes first (`SUBJECTS`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from appliance.diagnosis.axes import WHOSES
from appliance.diagnosis.raise_sites.site import RaiseSite
from appliance.diagnosis.stripping import without_advice

Reach = Literal["start", "request", "tool"]


class Area(NamedTuple):
    """`reach`: whether its errors come up in a start, in a request's answer only, or in another program."""

    owner: str
    family: str
    reach: Reach = "start"


class Subject(NamedTuple):
    """What a message or a function's name speaks of, whichever file it is in: any of `phrases`, in lower case; ^ is the
    message's beginning. Only in `owners`, where there are any."""

    area: Area
    phrases: tuple[str, ...]
    owners: tuple[str, ...] = ()


# As a sentence names them; those of the axes have their nouns there.
NOUNS: Final[Mapping[str, str]] = {whose.name: whose.noun for whose in WHOSES} | {
    "attention": "The attention backend",
    "environment": "An environment variable",
    "executor": "A process of the engine",
    "experts": "The backend for the experts (MoE)",
    "gpu-memory": "The GPU's memory",
    "graphs": "Graph capture",
    "kv-cache": "The KV cache",
    "kv-offload": "The offload of the KV cache",
    "model": "The model",
    "plugin": "A plugin",
    "python-package": "A Python package",
    "request": "A request",
    "sampler": "The sampler",
    "scheduler": "The scheduler",
    "server": "The API server",
    "snapshot": "The snapshot",
    "telemetry": "Metrics, tracing or profiling",
    "tool": "Another program of the engine",
    "worker": "The GPU worker",
}

_MODEL = Area("model", "model-config")
_MULTIMODAL = Area("multimodal", "model-config")
_TOKENIZER = Area("tokenizer", "model-config")
_ARGUMENTS = Area("arguments", "config")
_PARSER = Area("parser", "config")
_PARSER_IN_REQUEST = Area("parser", "config", "request")
_REQUEST = Area("request", "config", "request")
_TOOL = Area("tool", "config", "tool")
_SERVER = Area("server", "config")
_QUANTISATION = Area("quantisation", "quant-dtype")
_KERNELS = Area("kernel-library", "backend")
_ATTENTION = Area("attention", "backend")
_EXPERTS = Area("experts", "backend")
_WEIGHTS = Area("weights", "weights")
_COLLECTIVE = Area("collective", "nccl")
_CONNECTOR = Area("connector", "backend")
_ADAPTER = Area("adapter", "config")
_COMPILE = Area("compile-cache", "compile")
_DEVICE = Area("device", "driver")
_WORKER = Area("worker", "backend")
_EXECUTOR = Area("executor", "config")
_CACHE = Area("kv-cache", "memory")
_OFFLOAD = Area("kv-offload", "config")
_SAMPLER = Area("sampler", "config")
_DRAFT = Area("draft-model", "config")
_GRAMMAR = Area("structured-output", "config")
_TELEMETRY = Area("telemetry", "config")
_SNAPSHOT = Area("snapshot", "config")
_WEIGHT_UPDATES = Area("weights", "weights", "request")

AREAS: Final[Mapping[str, Area]] = {
    "vllm/": Area("arguments", "config"),
    "vllm/_": _KERNELS,
    "vllm/assets/": _TOOL,
    "vllm/beam_search": _REQUEST,
    "vllm/benchmarks/": _TOOL,
    "vllm/collect_env": _TOOL,
    "vllm/compilation/": _COMPILE,
    "vllm/compilation/cuda_graph": Area("graphs", "kernel-crash"),
    "vllm/compilation/breakable_cudagraph": Area("graphs", "kernel-crash"),
    "vllm/config/": _ARGUMENTS,
    "vllm/config/compilation": Area("arguments", "compile"),
    "vllm/config/ec_": _CONNECTOR,
    "vllm/config/kv_transfer": _CONNECTOR,
    "vllm/config/lora": _ADAPTER,
    "vllm/config/mamba": _CACHE._replace(family="config"),
    "vllm/config/model": Area("model-config", "model-config"),
    "vllm/config/multimodal": Area("multimodal", "config"),
    "vllm/config/quantization": _QUANTISATION,
    "vllm/config/reasoning": _PARSER,
    "vllm/config/speculative": _DRAFT,
    "vllm/config/structured_outputs": _GRAMMAR,
    "vllm/connections": Area("server", "offline"),
    "vllm/cute_utils/": _KERNELS,
    "vllm/device_allocator/": Area("gpu-memory", "memory"),
    "vllm/distributed/": _COLLECTIVE,
    "vllm/distributed/aux_output_connector/": _CONNECTOR,
    "vllm/distributed/ec_transfer/": _CONNECTOR,
    "vllm/distributed/elastic_ep/": _COLLECTIVE._replace(reach="request"),
    "vllm/distributed/kv_": _CONNECTOR,
    "vllm/distributed/mooncake": _CONNECTOR,
    "vllm/distributed/nixl": _CONNECTOR,
    "vllm/distributed/weight_transfer/": _WEIGHT_UPDATES,
    "vllm/engine/": _ARGUMENTS,
    "vllm/entrypoints/": _REQUEST,
    "vllm/entrypoints/cli/": _ARGUMENTS,
    "vllm/entrypoints/cli/benchmark/": _TOOL,
    "vllm/entrypoints/cli/snapshot": _TOOL,
    "vllm/entrypoints/launchers/": _SERVER,
    "vllm/entrypoints/launchers/cli_args": _ARGUMENTS,
    "vllm/entrypoints/launchers/run_batch": _TOOL,
    "vllm/entrypoints/mcp/tool_server": _SERVER,
    "vllm/entrypoints/openai/models/": _ADAPTER,
    "vllm/entrypoints/serve/middleware/": _SERVER,
    "vllm/entrypoints/ssl": Area("tls", "config"),
    "vllm/env_override": Area("environment", "config"),
    "vllm/envs": Area("environment", "config"),
    "vllm/forward_context": _WORKER,
    "vllm/inputs/": _REQUEST,
    "vllm/ir/": _COMPILE,
    "vllm/kernels/": _KERNELS,
    "vllm/logger": Area("logging", "config"),
    "vllm/logging_utils/": Area("logging", "config"),
    "vllm/logprobs": _REQUEST,
    "vllm/lora/": _ADAPTER,
    "vllm/model_executor/": _MODEL,
    "vllm/model_executor/custom_op": _COMPILE,
    "vllm/model_executor/determinism/": _KERNELS,
    "vllm/model_executor/hw_agnostic/": _COMPILE,
    "vllm/model_executor/kernels/": _KERNELS,
    "vllm/model_executor/kernels/attention/": _ATTENTION,
    "vllm/model_executor/layers/": _MODEL,
    "vllm/model_executor/layers/attention/": _ATTENTION,
    "vllm/model_executor/layers/fused_": _KERNELS,
    "vllm/model_executor/layers/fused_moe/": _EXPERTS,
    "vllm/model_executor/layers/fusion/": _KERNELS,
    "vllm/model_executor/layers/indexer": _ATTENTION,
    "vllm/model_executor/layers/mamba/": _ATTENTION,
    "vllm/model_executor/layers/mla": _ATTENTION,
    "vllm/model_executor/layers/quantization/": _QUANTISATION,
    "vllm/model_executor/layers/rocm_": _KERNELS,
    "vllm/model_executor/layers/sparse_": _ATTENTION,
    "vllm/model_executor/layers/vocab_parallel": _WEIGHTS,
    "vllm/model_executor/model_loader/": _WEIGHTS,
    "vllm/model_executor/offloader/": Area("gpu-memory", "memory"),
    "vllm/model_executor/parameter": _WEIGHTS,
    "vllm/model_executor/warmup/": _KERNELS,
    "vllm/models/": _MODEL,
    "vllm/multimodal/": _MULTIMODAL,
    "vllm/multimodal/audio": _MULTIMODAL._replace(reach="request"),
    "vllm/multimodal/media/": _MULTIMODAL._replace(reach="request"),
    "vllm/multimodal/parse": _MULTIMODAL._replace(reach="request"),
    "vllm/multimodal/video": _MULTIMODAL._replace(reach="request"),
    "vllm/outputs": _REQUEST,
    "vllm/parser/": _PARSER_IN_REQUEST,
    "vllm/parser/parser_manager": _PARSER,
    "vllm/platforms/": _DEVICE,
    "vllm/plugins/": Area("plugin", "config"),
    "vllm/pooling_params": _REQUEST,
    "vllm/profiler/": _TELEMETRY,
    "vllm/reasoning/": _PARSER,
    "vllm/renderers/": Area("chat-template", "model-config", "request"),
    "vllm/renderers/base": Area("chat-template", "model-config"),
    "vllm/renderers/hf": Area("chat-template", "model-config"),
    "vllm/renderers/registry": Area("chat-template", "model-config"),
    "vllm/sampling_params": _REQUEST,
    "vllm/scalar_type": _QUANTISATION,
    "vllm/snapshot/": _SNAPSHOT._replace(reach="tool"),
    "vllm/third_party/": _TOOL,
    "vllm/third_party/pynvml": _DEVICE,
    "vllm/tilelang_utils/": _KERNELS,
    "vllm/tokenizers/": _TOKENIZER,
    "vllm/tool_parsers/": _PARSER,
    "vllm/tracing/": _TELEMETRY,
    "vllm/transformers_utils/": Area("model-config", "model-config"),
    "vllm/transformers_utils/processor": _MULTIMODAL,
    "vllm/transformers_utils/repo_utils": Area("model-config", "offline"),
    "vllm/triton_utils/": _KERNELS,
    "vllm/usage/": _TELEMETRY,
    "vllm/utils/": _ARGUMENTS,
    "vllm/utils/cpu_triton": _KERNELS,
    "vllm/utils/deep_gemm": _KERNELS,
    "vllm/utils/flashinfer": _KERNELS,
    "vllm/utils/humming": _KERNELS,
    "vllm/utils/mem_utils": Area("gpu-memory", "memory"),
    "vllm/utils/multi_stream": _KERNELS,
    "vllm/utils/nccl": _COLLECTIVE,
    "vllm/utils/network_utils": Area("socket", "port"),
    "vllm/utils/numa_utils": Area("executor", "host"),
    "vllm/utils/ompmultiprocessing": Area("executor", "host"),
    "vllm/utils/sparse_utils": _KERNELS,
    "vllm/utils/tensor_schema": _MULTIMODAL,
    "vllm/utils/torch_utils": _QUANTISATION,
    "vllm/v1/": _WORKER,
    "vllm/v1/attention/": _ATTENTION,
    "vllm/v1/core/": _CACHE,
    "vllm/v1/core/encoder_cache": _MULTIMODAL,
    "vllm/v1/core/sched/": Area("scheduler", "config"),
    "vllm/v1/cudagraph_dispatcher": Area("graphs", "kernel-crash"),
    "vllm/v1/engine/": _EXECUTOR,
    "vllm/v1/engine/detokenizer": _REQUEST,
    "vllm/v1/engine/input_processor": _REQUEST,
    "vllm/v1/executor/": _EXECUTOR,
    "vllm/v1/executor/ray": Area("ray", "multi-node"),
    "vllm/v1/executor/vllm_net_devices": _COLLECTIVE,
    "vllm/v1/fault_tolerance/": _EXECUTOR,
    "vllm/v1/hisparse/": _OFFLOAD,
    "vllm/v1/kv_cache": _CACHE,
    "vllm/v1/kv_offload/": _OFFLOAD,
    "vllm/v1/metrics/": _TELEMETRY,
    "vllm/v1/outputs": _REQUEST,
    "vllm/v1/pool/": _REQUEST,
    "vllm/v1/request": _REQUEST,
    "vllm/v1/sample/": _SAMPLER,
    "vllm/v1/serial_utils": _EXECUTOR,
    "vllm/v1/simple_kv_offload/": _OFFLOAD,
    "vllm/v1/spec_decode/": _DRAFT,
    "vllm/v1/structured_output/": _GRAMMAR,
    "vllm/v1/utils": _EXECUTOR,
    "vllm/v1/watermarking/": _SAMPLER,
    "vllm/v1/worker/": _WORKER,
    "vllm/v1/worker/block_table": _CACHE,
    "vllm/v1/worker/encoder_cudagraph": Area("graphs", "kernel-crash"),
    "vllm/v1/worker/gpu/spec_decode/": _DRAFT,
    "vllm/v1/worker/gpu/sample/": _SAMPLER,
    "vllm/v1/worker/gpu_worker": Area("worker", "memory"),
    "vllm/v1/worker/lora": _ADAPTER,
    "vllm/v1/worker/workspace": Area("gpu-memory", "memory"),
    "vllm/vllm_flash_attn/": _ATTENTION,
}
_COMPUTING: Final = (
    "model", "attention", "experts", "kernel-library", "worker", "quantisation", "device", "sampler", "model-config",
)  # fmt: skip
SUBJECTS: Final = (
    Subject(Area("python-package", "abi"),
            ("pip install", "please install", "is not installed", "not installed", "to be installed",
             "could not import", "failed to import", "cannot import")),
    Subject(Area("environment", "config"), ("environment variable", "^vllm_", "invalid value for vllm_")),
    Subject(Area("gpu-memory", "memory"), ("out of memory", "not enough memory", "free memory", "gpu memory util",
                                           "insufficient memory", "available memory")),
    Subject(Area("device", "arch"), ("compute capability", "device capability", "cuda arch", "gpu architecture"),
            _COMPUTING),
    Subject(_ADAPTER, ("lora",), ("model", "worker", "experts", "arguments", "model-config", "quantisation")),
    Subject(_WEIGHTS, ("load_weights", "weight_loader", "checkpoint", "safetensors", "state_dict"),
            ("model", "experts", "quantisation", "worker", "draft-model", "multimodal")),
    Subject(_QUANTISATION, ("quantiz", "quantis", "nvfp4", "mxfp4", "mxfp8", "fp8", "int8", "w4a", "w8a"),
            ("model", "experts", "kernel-library", "arguments", "model-config", "device")),
    Subject(_DRAFT, ("speculative", "draft model", "draft_model", "spec decode"),
            ("arguments", "worker", "model", "model-config", "attention", "scheduler", "executor")),
    Subject(_ATTENTION, ("attention backend", "attn_backend"), ("arguments", "model", "device", "worker")),
    Subject(_EXPERTS, ("moe backend", "moe_backend"), ("arguments", "model", "device", "quantisation")),
    Subject(Area("ray", "multi-node"), (" ray ", "placement group"), ("arguments", "executor", "device")),
)  # fmt: skip


# Families that a message of this one may as well be taken for.
ALLIED: Final[Mapping[str, frozenset[str]]] = {
    family: frozenset(allied)
    for family, *allied in (
        ("abi", "jit-toolchain"),
        ("arch", "backend", "driver", "quant-dtype", "jit-toolchain"),
        ("backend", "arch", "jit-toolchain", "kernel-crash", "quant-dtype", "model-config", "driver"),
        ("compile", "jit-toolchain", "backend", "kernel-crash", "abi"),
        ("config", "port", "permission", "offline", "compile", "mig"),
        ("driver", "arch", "mig", "abi", "backend"),
        ("host", "permission"),
        ("kernel-crash", "compile", "arch", "backend"),
        ("memory", "host", "kernel-crash", "driver"),
        ("model-config", "weights", "quant-dtype", "backend", "arch", "offline"),
        ("multi-node", "nccl", "config"),
        ("nccl", "multi-node", "driver"),
        ("offline", "model-config"),
        ("port", "permission"),
        ("quant-dtype", "backend", "arch", "weights", "model-config"),
        ("weights", "model-config", "quant-dtype"),
    )
}
# How a process fared, whichever place reported it.
CIRCUMSTANCES: Final = ("hang", "crash-loop", "memory")


def contradicts(family: str, area: Area) -> bool:
    """Whether an error of that area is hardly of this family."""
    return family != area.family and family not in CIRCUMSTANCES and family not in ALLIED[area.family]


@functools.cache
def _prefixes() -> tuple[str, ...]:
    return tuple(sorted(AREAS, key=len, reverse=True))


@functools.lru_cache(maxsize=256)
def area_of_module(module: str) -> Area | None:
    """None outside the engines that were reviewed."""
    return next((AREAS[prefix] for prefix in _prefixes() if module.startswith(prefix)), None)


def area_of(site: RaiseSite) -> Area | None:
    area = area_of_module(site.module)
    if area is None:
        return None
    said = f"^{without_advice(' '.join(site.parts))} {site.scope}".lower()
    for subject in SUBJECTS:
        if (not subject.owners or area.owner in subject.owners) and any(phrase in said for phrase in subject.phrases):
            return subject.area._replace(reach=area.reach)
    return area
