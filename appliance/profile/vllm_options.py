"""What a profile may hand to `vllm serve`: flags and environment variables as rows.

The list is of what tunes a run. What would reach outside the model folder or the machine (remote code, downloads,
plug-ins, hosts, ports, keys, files) is not on it, and what the profile already says is named with its own key.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

from appliance.profile.vllm_json import json_problem

Kind = Literal["integer", "number", "boolean", "text", "json", "integers"]

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"


class Flag(msgspec.Struct, frozen=True):
    """A flag of `vllm serve`, without its dashes; a boolean false becomes `--no-<name>`. A text is one of `choices`, or
    a plain name: never a path or a class, by which vLLM would load what is not the model's. What JSON may hold
    is in vllm_json.py."""

    name: str
    kind: Kind
    help: str
    choices: tuple[str, ...] = ()


class Variable(msgspec.Struct, frozen=True):
    """An environment variable; `pattern` is what its value must match as a whole: one of `choices`, where it has
    any."""

    name: str
    pattern: str
    help: str
    choices: tuple[str, ...] = ()


def _one_of(name: str, choices: tuple[str, ...], help: str) -> Variable:
    return Variable(name, "|".join(choices), help, choices)


def _in_any_case(name: str, choices: tuple[str, ...], help: str) -> Variable:
    """In a form that JSON Schema has, too, where a part of a pattern has no flags."""
    spelled = ("".join(f"[{letter}{letter.lower()}]" for letter in choice) for choice in choices)
    return Variable(name, "|".join(spelled), help, choices)


FLAGS: Final = (
    Flag("async-scheduling", "boolean", "Schedule the next step while one runs."),
    Flag("block-size", "integer", "Tokens per KV cache block, if different from the profile."),
    Flag("chat-template-content-format", "text", "How message parts are passed to the chat template.",
         ("auto", "openai", "string")),
    Flag("compilation-config", "json", "Compilation level and options, as JSON."),
    Flag("convert", "text", "Use a generating model for another task.", ("auto", "classify", "embed", "none")),
    Flag("cpu-offload-gb", "number", "Weights to keep in host memory per GPU, in gigabytes."),
    Flag("cudagraph-capture-sizes", "integers", "Batch sizes to capture as CUDA graphs."),
    Flag("data-parallel-size", "integer", "Replicas of the model on this host."),
    Flag("decode-context-parallel-size", "integer", "GPUs that share one sequence's KV cache."),
    Flag("default-chat-template-kwargs", "json", "Variables of the chat template, as JSON."),
    Flag("disable-custom-all-reduce", "boolean", "Use NCCL rather than vLLM's own all-reduce."),
    Flag("disable-hybrid-kv-cache-manager", "boolean", "Use one cache size for every kind of layer."),
    Flag("disable-sliding-window", "boolean", "Cap the context at the sliding window instead."),
    Flag("distributed-executor-backend", "text", "How the workers of a host are started.", ("mp", "ray", "uni")),
    Flag("enable-auto-tool-choice", "boolean", "Let the model decide when to call tools."),
    Flag("enable-chunked-prefill", "boolean", "Compute long prompts in chunks."),
    Flag("enable-eplb", "boolean", "Rebalance experts between GPUs by use."),
    Flag("enable-expert-parallel", "boolean", "Distribute whole experts over GPUs instead of splitting them."),
    Flag("enable-flashinfer-autotune", "boolean", "Tune FlashInfer's kernels at start-up."),
    Flag("enable-prompt-tokens-details", "boolean", "Report prefix-cache hits in the usage of an answer."),
    Flag("exclude-tools-when-tool-choice-none", "boolean", "Leave tools out of the prompt if tool_choice is none."),
    Flag("generation-config", "text", "Where sampling defaults come from: the checkpoint or the profile.",
         ("auto", "vllm")),
    Flag("hf-overrides", "json", "Values to replace in config.json, as JSON."),
    Flag("kv-offloading-size", "number", "Host memory for offloaded KV cache, in gigabytes."),
    Flag("language-model-only", "boolean", "Do not load the image and audio encoders."),
    Flag("limit-mm-per-prompt", "json", "The most images, audio and video clips per prompt, as JSON."),
    Flag("load-format", "text", "How weights are loaded: auto, safetensors, dummy."),
    Flag("logprobs-mode", "text", "Report logprobs before or after penalties and temperature.",
         ("processed_logits", "processed_logprobs", "raw_logits", "raw_logprobs")),
    Flag("long-prefill-token-threshold", "integer", "Prompts longer than this count as long, in tokens."),
    Flag("mamba-cache-dtype", "text", "The number format of the Mamba state.",
         ("auto", "bfloat16", "float16", "float32")),
    Flag("mamba-ssm-cache-dtype", "text", "The number format of the Mamba SSM state.",
         ("auto", "bfloat16", "float16", "float32")),
    Flag("max-cudagraph-capture-size", "integer", "The largest batch to capture as a CUDA graph."),
    Flag("max-logprobs", "integer", "The most logprobs per token."),
    Flag("mm-processor-cache-gb", "number", "Cache for processed images and audio, in gigabytes."),
    Flag("mm-processor-kwargs", "json", "Options of the multimodal processor, as JSON."),
    Flag("model-impl", "text", "Which implementation of the model to use: vLLM's or "
                               "transformers'.", ("auto", "vllm", "transformers")),
    Flag("num-gpu-blocks-override", "integer", "The number of KV cache blocks, overriding the profiling run."),
    Flag("optimization-level", "integer", "Optimisation level: 0 starts fastest, 3 runs fastest."),
    Flag("performance-mode", "text", "What to optimise for.", ("balanced", "interactivity", "throughput")),
    Flag("pipeline-parallel-size", "integer", "The number of pipeline stages, each on its own GPUs."),
    Flag("pooler-config", "json", "How an embedding model pools token vectors, as JSON."),
    Flag("quantization", "text", "The quantisation method, if the checkpoint does not say."),
    Flag("reasoning-parser", "text", "The parser that separates reasoning from the answer."),
    Flag("runner", "text", "What the model does: generate, embed or score.",
         ("auto", "draft", "generate", "pooling")),
    Flag("scheduling-policy", "text", "The scheduling order: first come first served, or by "
                                      "priority.", ("fcfs", "priority")),
    Flag("seed", "integer", "The seed of the engine's random numbers."),
    Flag("skip-mm-profiling", "boolean", "Skip the multimodal memory profiling at start-up."),
    Flag("stream-interval", "integer", "Tokens per chunk of a stream."),
    Flag("structured-outputs-config", "json", "Constrained decoding, as JSON."),
    Flag("tokenizer-mode", "text", "auto, hf, mistral, or the tokenizer of one family."),
    Flag("tool-call-parser", "text", "The parser for the model's tool calls."),
)  # fmt: skip

# What people will look for, and what stands in its place; None: refused for safety. Flags and variables.
INSTEAD: Final[dict[str, str | None]] = {
    "allowed-local-media-path": None,
    "allowed-media-domains": None,
    "api-key": None,
    "attention-backend": "backends.attention",
    "code-revision": None,
    "config": None,
    "download-dir": None,
    "dtype": "dtype",
    "enable-log-requests": None,
    "enable-prefix-caching": "prefix-caching",
    "enforce-eager": "enforce-eager",
    "gdn-prefill-backend": "backends.gdn-prefill",
    "gpu-memory-utilization": "gpu-memory-utilization",
    "host": None,
    "kv-cache-dtype": "kv-cache-dtype",
    "kv-cache-memory-bytes": "kv-cache-memory-bytes",
    "kv-transfer-config": None,
    "linear-backend": "backends.linear",
    "logits-processors": None,
    "lora-modules": None,
    "max-model-len": "max-model-len",
    "max-num-batched-tokens": "max-num-batched-tokens",
    "max-num-seqs": "max-num-seqs",
    "middleware": None,
    "model": "model.path",
    "moe-backend": "backends.moe",
    "override-generation-config": "sampling-defaults",
    "port": None,
    "served-model-name": "served-model-name",
    "speculative-config": "speculative-config.method",
    "tensor-parallel-size": "tensor-parallel-size",
    "tokenizer": None,
    "tool-parser-plugin": None,
    "trust-remote-code": None,
    "uds": None,
    "worker-extension-cls": None,
    "CUDA_VISIBLE_DEVICES": "device",
    "HF_TOKEN": None,
    "RAY_ADDRESS": "ray.address",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": None,
    "VLLM_API_KEY": None,
    "VLLM_ATTENTION_BACKEND": "backends.attention",
    "VLLM_CPU_KVCACHE_SPACE": "kv-cache-memory-bytes",
    "VLLM_FLASHINFER_MOE_BACKEND": "backends.moe",
    "VLLM_HOST_IP": "ray.host-ip",
    "VLLM_PLUGINS": None,
    "VLLM_SERVER_DEV_MODE": None,
    "VLLM_USE_FLASHINFER_MOE_FP16": "backends.moe",
    "VLLM_USE_FLASHINFER_MOE_FP4": "backends.moe",
    "VLLM_USE_FLASHINFER_MOE_FP8": "backends.moe",
}

# What vLLM had and reads no more, and what took its place, if anything did.
GONE: Final[dict[str, str | None]] = {
    "calculate-kv-scales": None,
    "cuda-graph-sizes": "cudagraph-capture-sizes",
    "guided-decoding-backend": "structured-outputs-config",
    "max-seq-len-to-capture": "max-cudagraph-capture-size",
    "rope-scaling": "hf-overrides",
    "rope-theta": "hf-overrides",
    "swap-space": "kv-offloading-size",
    "task": "runner",
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
    "VLLM_FLASH_ATTN_VERSION": None,
    "VLLM_MOE_DP_CHUNK_SIZE": None,
    "VLLM_RPC_TIMEOUT": "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
    "VLLM_USE_TRITON_FLASH_ATTN": None,
    "VLLM_USE_V1": None,
}

_SWITCH: Final = r"[01]"
_WORD: Final = r"[A-Za-z0-9_.,:=^-]{1,256}"
_COUNT: Final = r"[0-9]{1,12}"

VARIABLES: Final = (
    Variable("CUDA_DEVICE_MAX_CONNECTIONS", _COUNT, "Hardware queues for each GPU."),
    Variable("GLOO_SOCKET_IFNAME", _WORD, "Which network interfaces gloo uses."),
    Variable(
        "LANG",
        r"[A-Za-z_]{1,10}\.(UTF-8|utf8)",
        "Language and character set of the engine's processes, such as C.UTF-8.",
    ),
    Variable("MAX_JOBS", _COUNT, "How many compilers may run at the same time."),
    Variable("NCCL_ALGO", _WORD, "Algorithms that NCCL may use."),
    Variable("NCCL_BUFFSIZE", _COUNT, "NCCL's buffer between two GPUs, in bytes."),
    Variable("NCCL_CUMEM_ENABLE", _SWITCH, "Allocate NCCL memory with cuMem."),
    _in_any_case("NCCL_DEBUG", ("VERSION", "WARN", "INFO", "ABORT", "TRACE"), "How much NCCL logs."),
    Variable("NCCL_DEBUG_SUBSYS", _WORD, "Which NCCL subsystems log."),
    Variable("NCCL_IB_DISABLE", _SWITCH, "Do not use InfiniBand."),
    Variable("NCCL_IB_HCA", _WORD, "Which InfiniBand adapters to use."),
    Variable("NCCL_MAX_NCHANNELS", _COUNT, "The most channels NCCL uses."),
    Variable("NCCL_MIN_NCHANNELS", _COUNT, "The fewest channels NCCL uses."),
    Variable("NCCL_NVLS_ENABLE", r"[012]", "Use NVLink SHARP."),
    Variable("NCCL_P2P_DISABLE", _SWITCH, "Do not copy from GPU to GPU directly."),
    _one_of(
        "NCCL_P2P_LEVEL", ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS"), "How far apart GPUs that copy directly may be."
    ),
    Variable("NCCL_PROTO", _WORD, "Protocols that NCCL may use."),
    Variable("NCCL_SHM_DISABLE", _SWITCH, "Do not use shared memory between processes."),
    Variable("NCCL_SOCKET_IFNAME", _WORD, "Which network interfaces to use."),
    Variable("OMP_NUM_THREADS", _COUNT, "CPU threads of each worker."),
    Variable("PYTORCH_CUDA_ALLOC_CONF", _WORD, "Options of torch's memory allocator."),
    Variable("VLLM_CPU_OMP_THREADS_BIND", _WORD, "CPU cores the workers are pinned to."),
    Variable("VLLM_CPU_NUM_OF_RESERVED_CPU", _COUNT, "CPU cores reserved for other processes."),
    _one_of("VLLM_DEEP_GEMM_WARMUP", ("skip", "full", "relax"), "How much DeepGEMM warms up."),
    Variable("VLLM_ENGINE_READY_TIMEOUT_S", _COUNT, "Start-up timeout of the engine, in seconds."),
    Variable("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", _COUNT, "Timeout of one worker step, in seconds."),
    _in_any_case(
        "VLLM_LOGGING_LEVEL",
        ("NOTSET", "DEBUG", "INFO", "WARN", "WARNING", "ERROR", "FATAL", "CRITICAL"),
        "How much vLLM logs.",
    ),
    Variable("VLLM_USE_DEEP_GEMM", _SWITCH, "Use DeepGEMM for FP8."),
    Variable("VLLM_USE_FLASHINFER_SAMPLER", _SWITCH, "FlashInfer's sampler."),
    _one_of("VLLM_WORKER_MULTIPROC_METHOD", ("spawn", "fork"), "How workers are started."),
    Variable("VLLM_WSL2_ENABLE_PIN_MEMORY", _SWITCH, "Use pinned host memory under WSL 2."),
)

FLAG_BY_NAME: Final = {flag.name: flag for flag in FLAGS}
VARIABLE_BY_NAME: Final = {variable.name: variable for variable in VARIABLES}


def variable_matches(variable: Variable, value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(variable.pattern, value, re.ASCII) is not None


def flag_problem(flag: Flag, value: Any) -> str | None:
    """What is wrong with a text, JSON or list that has the right type; None where nothing is."""
    match flag.kind:
        case "text" if flag.choices:
            return None if value in flag.choices else f"Must be one of {', '.join(flag.choices)}."
        case "text":
            return None if re.fullmatch(_NAME, value, re.ASCII) else "Must be a name: letters, digits and . _ -"
        case "json":
            return json_problem(flag.name, value)
        case "integers":
            return None if value and all(type(item) is int for item in value) else "Must be a list of whole numbers."
    return None
