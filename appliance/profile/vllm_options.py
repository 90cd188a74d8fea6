"""What a profile may hand to `vllm serve`: flags and environment variables as rows.

The list is of what tunes a run. What would reach outside the model folder or the machine (remote code, downloads,
plug-ins, hosts, ports, keys, files) is not on it, and what the profile already says is named with its own key.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

Kind = Literal["integer", "number", "boolean", "text"]


class Flag(msgspec.Struct, frozen=True):
    """A flag of `vllm serve`, without its dashes; a boolean false becomes `--no-<name>`."""

    name: str
    kind: Kind
    help: str


class Variable(msgspec.Struct, frozen=True):
    """An environment variable; `pattern` is what its value must match as a whole."""

    name: str
    pattern: str
    help: str


FLAGS: Final = (
    Flag("async-scheduling", "boolean", "Schedule the next step while one runs."),
    Flag("block-size", "integer", "Tokens in a cache block, where vLLM is to differ from the profile."),
    Flag("calculate-kv-scales", "boolean", "Compute the scales of an FP8 cache while running."),
    Flag("compilation-config", "text", "Compilation level and options, as JSON."),
    Flag("cpu-offload-gb", "number", "Gigabytes of weights to keep in host memory for each GPU."),
    Flag("cuda-graph-sizes", "text", "Batch sizes to capture as CUDA graphs."),
    Flag("data-parallel-size", "integer", "Copies of the model on this host."),
    Flag("disable-custom-all-reduce", "boolean", "Use NCCL rather than vLLM's own all-reduce."),
    Flag("disable-log-stats", "boolean", "Do not log throughput."),
    Flag("disable-sliding-window", "boolean", "Cap the context at the sliding window instead."),
    Flag("distributed-executor-backend", "text", "mp or ray."),
    Flag("enable-auto-tool-choice", "boolean", "Let the model decide to call tools."),
    Flag("enable-chunked-prefill", "boolean", "Compute long prompts in chunks."),
    Flag("enable-expert-parallel", "boolean", "Spread experts over GPUs rather than split them."),
    Flag("generation-config", "text", "Where sampling defaults come from: auto or vllm."),
    Flag("guided-decoding-backend", "text", "Which library constrains output to a grammar."),
    Flag("hf-overrides", "text", "Values to replace in config.json, as JSON."),
    Flag("limit-mm-per-prompt", "text", "Images, audio and video of one prompt at most, as JSON."),
    Flag("load-format", "text", "How weights are read: auto, safetensors, dummy."),
    Flag("max-seq-len-to-capture", "integer", "The longest context that CUDA graphs cover."),
    Flag("mm-processor-kwargs", "text", "Options of the multimodal processor, as JSON."),
    Flag("num-gpu-blocks-override", "integer", "Cache blocks, instead of what the profiling run finds."),
    Flag("pipeline-parallel-size", "integer", "Groups of layers, each on GPUs of its own."),
    Flag("quantization", "text", "The quantisation method, where the checkpoint does not say it."),
    Flag("reasoning-parser", "text", "How the model's reasoning is told from its answer."),
    Flag("rope-scaling", "text", "RoPE scaling, as JSON."),
    Flag("rope-theta", "number", "The base of RoPE."),
    Flag("scheduling-policy", "text", "fcfs or priority."),
    Flag("seed", "integer", "The seed of the engine's random numbers."),
    Flag("structured-outputs-config", "text", "Constrained decoding, as JSON."),
    Flag("swap-space", "number", "Gigabytes of host memory for each GPU to swap cache into."),
    Flag("task", "text", "What the model does: generate, embed, score, ..."),
    Flag("tokenizer-mode", "text", "auto, slow or mistral."),
    Flag("tool-call-parser", "text", "How the model's tool calls are read."),
)

# Flags that people will look for, and what stands in their place; None: refused for safety.
INSTEAD: Final[dict[str, str | None]] = {
    "allowed-local-media-path": None,
    "api-key": None,
    "attention-backend": "backends.attention",
    "code-revision": None,
    "download-dir": None,
    "dtype": "dtype",
    "enable-prefix-caching": "prefix-caching",
    "enforce-eager": "enforce-eager",
    "gpu-memory-utilization": "gpu-memory-utilization",
    "host": None,
    "kv-cache-dtype": "kv-cache-dtype",
    "kv-cache-memory-bytes": "kv-cache-memory-bytes",
    "kv-transfer-config": None,
    "max-model-len": "max-model-len",
    "max-num-batched-tokens": "max-num-batched-tokens",
    "max-num-seqs": "max-num-seqs",
    "middleware": None,
    "model": "model.path",
    "port": None,
    "served-model-name": "served-model-name",
    "speculative-config": None,
    "tensor-parallel-size": "tensor-parallel-size",
    "tokenizer": None,
    "tool-parser-plugin": None,
    "trust-remote-code": None,
    "worker-extension-cls": None,
}

_SWITCH: Final = r"[01]"
_WORD: Final = r"[A-Za-z0-9_.,:=^-]{1,256}"
_COUNT: Final = r"[0-9]{1,12}"

VARIABLES: Final = (
    Variable("CUDA_DEVICE_MAX_CONNECTIONS", _COUNT, "Hardware queues for each GPU."),
    Variable("NCCL_ALGO", _WORD, "Algorithms that NCCL may use."),
    Variable("NCCL_BUFFSIZE", _COUNT, "NCCL's buffer between two GPUs, in bytes."),
    Variable("NCCL_CUMEM_ENABLE", _SWITCH, "Allocate NCCL's memory with cuMem."),
    Variable("NCCL_DEBUG", r"VERSION|WARN|INFO|TRACE", "How much NCCL logs."),
    Variable("NCCL_DEBUG_SUBSYS", _WORD, "Of which parts NCCL logs."),
    Variable("NCCL_IB_DISABLE", _SWITCH, "Do not use InfiniBand."),
    Variable("NCCL_IB_HCA", _WORD, "Which InfiniBand adapters to use."),
    Variable("NCCL_MAX_NCHANNELS", _COUNT, "Channels at most."),
    Variable("NCCL_MIN_NCHANNELS", _COUNT, "Channels at least."),
    Variable("NCCL_NVLS_ENABLE", r"[012]", "Use NVLink SHARP."),
    Variable("NCCL_P2P_DISABLE", _SWITCH, "Do not copy from GPU to GPU directly."),
    Variable("NCCL_P2P_LEVEL", r"LOC|NVL|PIX|PXB|PHB|SYS", "How far apart GPUs may be to copy directly."),
    Variable("NCCL_PROTO", _WORD, "Protocols that NCCL may use."),
    Variable("NCCL_SHM_DISABLE", _SWITCH, "Do not use shared memory between processes."),
    Variable("NCCL_SOCKET_IFNAME", _WORD, "Which network interfaces to use."),
    Variable("OMP_NUM_THREADS", _COUNT, "CPU threads of each worker."),
    Variable("PYTORCH_CUDA_ALLOC_CONF", _WORD, "Options of torch's memory allocator."),
    Variable("VLLM_ATTENTION_BACKEND", _WORD, "Which attention backend vLLM uses."),
    Variable("VLLM_CPU_KVCACHE_SPACE", _COUNT, "Gigabytes of cache on a CPU."),
    Variable("VLLM_CPU_OMP_THREADS_BIND", _WORD, "Which CPU cores the workers use."),
    Variable("VLLM_DEEP_GEMM_WARMUP", r"skip|full|relax", "How DeepGEMM is warmed up."),
    Variable("VLLM_ENGINE_ITERATION_TIMEOUT_S", _COUNT, "Seconds that one step may take."),
    Variable("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", _COUNT, "Seconds that a worker may take for one step."),
    Variable("VLLM_FLASHINFER_MOE_BACKEND", _WORD, "Which FlashInfer kernels compute experts."),
    Variable("VLLM_FLASH_ATTN_VERSION", r"[234]", "Which FlashAttention to use."),
    Variable("VLLM_LOGGING_LEVEL", r"DEBUG|INFO|WARNING|ERROR", "How much vLLM logs."),
    Variable("VLLM_MOE_DP_CHUNK_SIZE", _COUNT, "Tokens in a chunk of data-parallel experts."),
    Variable("VLLM_RPC_TIMEOUT", _COUNT, "Milliseconds that a call to a worker may take."),
    Variable("VLLM_USE_DEEP_GEMM", _SWITCH, "Use DeepGEMM for FP8."),
    Variable("VLLM_USE_FLASHINFER_MOE_FP16", _SWITCH, "FlashInfer experts in 16 bits."),
    Variable("VLLM_USE_FLASHINFER_MOE_FP4", _SWITCH, "FlashInfer experts in FP4."),
    Variable("VLLM_USE_FLASHINFER_MOE_FP8", _SWITCH, "FlashInfer experts in FP8."),
    Variable("VLLM_USE_FLASHINFER_SAMPLER", _SWITCH, "FlashInfer's sampler."),
    Variable("VLLM_USE_TRITON_FLASH_ATTN", _SWITCH, "Triton's attention on AMD."),
    Variable("VLLM_WORKER_MULTIPROC_METHOD", r"spawn|fork|forkserver", "How workers are started."),
)

FLAG_BY_NAME: Final = {flag.name: flag for flag in FLAGS}
VARIABLE_BY_NAME: Final = {variable.name: variable for variable in VARIABLES}


def variable_matches(variable: Variable, value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(variable.pattern, value, re.ASCII) is not None
