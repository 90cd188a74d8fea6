"""Which flag of `vllm serve` each setting of a profile becomes: a row each.

A value that is vLLM's own default is left out, so that a vLLM that does not know the flag yet starts as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from appliance.profile.schema import BY_KEY, Profile
from appliance.profile.speculative import SpeculativeConfig

# vLLM's own proposer looks up as many of the last tokens as the native one (`appliance/engine/speculation/ngram.py`).
_LOOKUP: Final = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}


class Rendered(msgspec.Struct, frozen=True):
    """`unless` is the value that is left out; `only` the device that the flag is for."""

    key: str
    flag: str
    value: Callable[[Profile], Any]
    unless: Any = None
    only: str | None = None


def _drafts(config: SpeculativeConfig) -> str | None:
    if config.method == "none":
        return None
    lookup = _LOOKUP if config.method == "ngram" else {}
    return json.dumps({"method": config.method, "num_speculative_tokens": config.most, **lookup})


FLAGS: Final = (
    Rendered("served-model-name", "served-model-name", lambda profile: profile.served_model_name),
    Rendered("dtype", "dtype", lambda profile: profile.dtype, unless="auto"),
    Rendered("max-num-seqs", "max-num-seqs", lambda profile: profile.max_num_seqs),
    Rendered("max-num-batched-tokens", "max-num-batched-tokens", lambda profile: profile.max_num_batched_tokens),
    # The profile's default says nothing: vLLM takes what suits the device and the model.
    Rendered("block-size", "block-size", lambda profile: profile.block_size, unless=BY_KEY["block-size"].default),
    Rendered(
        "gpu-memory-utilization",
        "gpu-memory-utilization",
        lambda profile: profile.gpu_memory_utilization,
        only="cuda",
    ),
    Rendered("kv-cache-dtype", "kv-cache-dtype", lambda profile: profile.kv_cache_dtype, unless="auto"),
    Rendered(
        "kv-cache-memory-bytes", "kv-cache-memory-bytes", lambda profile: profile.kv_cache_memory_bytes, only="cuda"
    ),
    Rendered("tensor-parallel-size", "tensor-parallel-size", lambda profile: profile.tensor_parallel_size, unless=1),
    Rendered("enforce-eager", "enforce-eager", lambda profile: profile.enforce_eager, unless=False),
    Rendered("speculative-config.method", "speculative-config", lambda profile: _drafts(profile.speculative_config)),
    Rendered("prefix-caching", "enable-prefix-caching", lambda profile: profile.prefix_caching, unless=True),
)

# Settings that are the appliance's own affair, or whose flags command_line.py makes.
OTHERWISE: Final = frozenset({
    "schema", "name", "model.path", "model.digest", "engine", "device", "max-model-len", "on-failure",
    "index-key-dtype", "prefix-cache-salt", "tool-call-parser", "reasoning-parser", "strict-requests", "response-store",
    "jit", "vllm.extra-args", "vllm.environment", "chat-encoding", "site-backends",
    "speculative-config.num-speculative-tokens",
    *(key for key in BY_KEY if key.startswith(("backends.", "on-request.", "sampling-defaults.", "ray."))),
})  # fmt: skip
