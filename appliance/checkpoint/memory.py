"""How a model's memory is divided: weights, workspace, and what is left for the key-value cache.

By arithmetic, before anything is read. Bytes of the cache for one token are 2 (key and value) x layers x kv heads x
head_dim x bytes of its dtype.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Final

import msgspec

from appliance.checkpoint.layout import weight_bytes
from appliance.checkpoint.model_config import ModelConfig
from appliance.checkpoint.selection import keeps_fp8

MIB: Final = 1 << 20
ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
# What the profile's `kv-cache-dtype` is to the engine, by torch's name.
CACHE_DTYPES: Final = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}

# What torch itself takes: its libraries and allocator on the host; the context and its modules on a GPU.
RUNTIME_BYTES: Final = {"cpu": 320 * MIB, "cuda": 768 * MIB}
# For each logit at sampling: itself as computed and in float32, and its log probability. Whatever else a row needs is
# needed for one row at a time, or for its likeliest tokens.
BYTES_PER_LOGIT: Final = 12
# A cache of this size serves many short chats. More by default would slow other programs, and the start too: its memory
# is claimed there, which takes half a second a GiB.
DEFAULT_HOST_CACHE: Final = 512 * MIB
HOST_CACHE_SHARE: Final = 0.25
# A context shortened by itself to fit is still of use down to this length; below, the launch is refused.
SHORTEST_USEFUL_CONTEXT: Final = 2048


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """Upper estimates, in bytes, of what is needed beside weights and cache.

    `runtime` is what torch takes for itself; `activations` what flows through the layers of one step, and `attention`
    what its backend works in; `logits` those of sampling; `tables` those for rotary positions; `packed` the copies of
    weights that a kernel has beside the weights themselves.
    """

    runtime: int
    activations: int
    attention: int
    logits: int
    tables: int
    packed: int

    @property
    def total(self) -> int:
        return self.runtime + self.activations + self.attention + self.logits + self.tables + self.packed


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All in bytes but `num_blocks`, `block_size` and the two lengths.

    `available_bytes` is what weights, workspace and cache may take together. `max_model_len` is the length planned
    for, `longest_context` the longest that would fit; `fits` says whether the launch can go on.
    """

    weight_bytes: int
    workspace: Workspace
    cache_bytes: int
    num_blocks: int
    block_size: int
    bytes_per_token: int
    available_bytes: int
    max_model_len: int
    longest_context: int
    shortened: bool
    fits: bool

    @property
    def workspace_bytes(self) -> int:
        return self.workspace.total

    @property
    def needed_bytes(self) -> int:
        return self.weight_bytes + self.workspace_bytes + self.cache_bytes


class MemoryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The profile's part of the plan. `max_model_len` and `kv_cache_memory_bytes` None: to be derived."""

    dtype: str
    kv_cache_dtype: str
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_cache_memory_bytes: int | None


def plan_memory(
    config: ModelConfig, limits: MemoryLimits, *, device: str, available_bytes: int, attention: Callable[[int], int]
) -> MemoryPlan:
    """Divide `available_bytes` of a `cpu` or `cuda` device. Never raises: what does not fit has `fits` False.

    `attention` gives the bytes that the chosen backend works in where contexts have up to so many tokens; it never
    falls as they grow.

    The cache gets room for max_num_seqs sequences of max_model_len if there is that much; on a CPU at most
    `DEFAULT_HOST_CACHE` unless one sequence needs more, and at most a quarter of the available memory. At least one
    sequence and one block must fit. Where the profile leaves max_model_len open, it is shortened to fit.
    """

    weights = weight_bytes(config, ITEM_BYTES[limits.dtype], keep_fp8=keeps_fp8(config, device, limits.dtype))

    def plan(model_len: int) -> MemoryPlan:
        workspace = _workspace(config, limits, device, model_len, attention(model_len))
        return _plan_for(config, limits, device, available_bytes, weights, workspace, model_len)

    wanted = limits.max_model_len or config.context_length
    result = plan(wanted)
    if result.fits:
        return result
    # The workspace grows with the context as the cache does, so fitting is monotone: search for its end.
    lengths = range(0, wanted, limits.block_size)
    first_misfit = bisect.bisect_left(lengths, True, key=lambda length: not plan(length).fits)
    longest = lengths[first_misfit - 1] if first_misfit else 0
    if limits.max_model_len is None and longest >= min(wanted, SHORTEST_USEFUL_CONTEXT):
        return msgspec.structs.replace(plan(longest), shortened=True)
    return msgspec.structs.replace(result, longest_context=longest)


def _plan_for(
    config: ModelConfig,
    limits: MemoryLimits,
    device: str,
    available_bytes: int,
    weights: int,
    workspace: Workspace,
    model_len: int,
) -> MemoryPlan:
    block_bytes = _bytes_per_token(config, limits.kv_cache_dtype) * limits.block_size
    room = max(available_bytes - weights - workspace.total, 0)
    blocks_of_one = -(-model_len // limits.block_size)
    least = blocks_of_one + 1
    if limits.kv_cache_memory_bytes is not None:
        limit = limits.kv_cache_memory_bytes
        num_blocks = limit // block_bytes
    else:
        limit = room
        if device == "cpu":
            limit = min(limit, int(available_bytes * HOST_CACHE_SHARE), max(DEFAULT_HOST_CACHE, least * block_bytes))
        num_blocks = min(limit // block_bytes, blocks_of_one * limits.max_num_seqs + 1)
    fits = num_blocks >= least and weights + workspace.total + num_blocks * block_bytes <= available_bytes
    num_blocks = max(num_blocks, least)
    return MemoryPlan(
        weight_bytes=weights,
        workspace=workspace,
        cache_bytes=num_blocks * block_bytes,
        num_blocks=num_blocks,
        block_size=limits.block_size,
        bytes_per_token=block_bytes // limits.block_size,
        available_bytes=available_bytes,
        max_model_len=model_len,
        longest_context=model_len,
        shortened=False,
        fits=fits,
    )


def _bytes_per_token(config: ModelConfig, kv_cache_dtype: str) -> int:
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * ITEM_BYTES[kv_cache_dtype]


def _workspace(config: ModelConfig, limits: MemoryLimits, device: str, model_len: int, attention: int) -> Workspace:
    item, tokens = ITEM_BYTES[limits.dtype], limits.max_num_batched_tokens
    query = config.num_attention_heads * config.head_dim
    key_value = config.num_key_value_heads * config.head_dim
    # Residual, normed input, query, key, value, attention's output, the layer's output; with FP8 each of them rounded.
    wide = item + 1 if keeps_fp8(config, device, limits.dtype) else item
    activations = tokens * ((4 * config.hidden_size + 2 * query + 2 * key_value) * wide + _feed_forward(config, wide))
    # A processor's product wants weights in a layout of its own, and the embedding cannot be looked up in that.
    second_head = config.vocab_size * config.hidden_size * item if device == "cpu" and config.tie_word_embeddings else 0
    return Workspace(
        runtime=RUNTIME_BYTES[device],
        activations=activations,
        attention=attention,
        logits=limits.max_num_seqs * config.vocab_size * BYTES_PER_LOGIT,
        tables=model_len * config.rotary_dim * item,
        packed=second_head,
    )


def _feed_forward(config: ModelConfig, item: int) -> int:
    """Of one token: gate and up, and their product; with experts once for each of the token's, besides its copy of the
    input, its result, the sum in float32, and the router's logits, scores and order of the experts."""
    dense = 3 * config.intermediate_size * item
    if config.experts is None:
        return dense
    chosen = config.experts.routing.top_k * (3 * config.experts.intermediate_size + 2 * config.hidden_size) * item
    return max(dense, chosen + 4 * config.hidden_size + 32 * config.experts.num_experts)
