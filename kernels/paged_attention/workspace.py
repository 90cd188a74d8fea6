"""The device memory the native engine's attention takes during a step, beyond the cache, its input and its result. It
is for the memory plan, which is made before anything is loaded and imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kernels.context import Context
from kernels.paged_attention import GATHERED_TOKENS, modules, scratch_bytes, variants

ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}


class Step(NamedTuple):
    """The limits of a step: tokens to compute, sequences, and tokens that one sequence sees."""

    num_tokens: int
    num_seqs: int
    longest_context: int


def workspace_bytes(backend: str, context: Context, step: Step) -> int:
    """An upper bound for one of the native backends, in bytes. It never shrinks when a number of `step` grows."""
    return max(sum(tensors) for tensors in workspace_tensors(backend, context, step))


def workspace_tensors(backend: str, context: Context, step: Step) -> tuple[tuple[int, ...], ...]:
    """The same tensor by tensor, for each moment that may be the peak."""
    return _BY_BACKEND[backend](context, step)


def _torch(context: Context, step: Step) -> tuple[tuple[int, ...], ...]:
    """Keys and values copied out of their blocks, widened if the cache is narrower: of several sequences that decode,
    or of one prefill, with a chunk's mask against its context, as it is computed and as torch's attention takes it."""
    item, cache_item = ITEM_BYTES[context.dtype], ITEM_BYTES[context.cache_dtype]
    width = context.num_kv_heads * context.head_dim
    narrow = width * cache_item if cache_item != item else 0
    length = step.longest_context
    mask = min(step.num_tokens, length) * length

    def gathered(tokens: int) -> tuple[int, int, int]:
        return tokens * width * item, tokens * width * item, tokens * narrow

    return gathered(gathered_tokens(step)), (*gathered(length), mask, mask * item)


def _triton(context: Context, step: Step) -> tuple[tuple[int, ...], ...]:
    """The parts of decodes; from sm_90 on also prefills' keys and values, copied together in the model's dtype."""
    decodes = scratch_bytes(context.num_heads, context.head_dim, step.longest_context)
    if not variants.gathers(context.arch, context.head_dim):
        return ((decodes,),)
    token = 2 * context.num_kv_heads * context.head_dim * ITEM_BYTES[context.dtype]
    return ((decodes, gathered_tokens(step) * token),)


def _flashinfer(context: Context, step: Step) -> tuple[tuple[int, ...], ...]:
    """Taken once, for any step."""
    return ((modules.workspace_bytes(context),),)


def _cpp(context: Context, step: Step) -> tuple[tuple[int, ...], ...]:
    """Queries and sums of one head's chunk, and a block of its keys and values (`kernels/cpu/attention.cpp`): some
    hundred kilobytes, of usual heads. Each thread has its own, of which the plan counts one."""
    chunk, block = 64, 64
    rows = min(step.num_tokens, chunk) * context.num_heads // context.num_kv_heads
    return ((4 * rows * (2 * context.head_dim + 2) + 4 * 2 * block * context.head_dim,),)


_BY_BACKEND: Final[Mapping[str, Callable[[Context, Step], tuple[tuple[int, ...], ...]]]] = {
    "torch": _torch,
    "cpp": _cpp,
    "triton": _triton,
    "flashinfer": _flashinfer,
}


def gathered_tokens(step: Step) -> int:
    """At most `GATHERED_TOKENS` of several sequences, or all of a single one."""
    return max(step.longest_context, min(GATHERED_TOKENS, step.num_seqs * step.longest_context))
