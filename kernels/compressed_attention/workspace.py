"""The device memory that attention over compressed entries takes during a step, beyond the caches, its input and its
result: `paged_attention.workspace` says how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kernels.compressed_attention import gathered_bytes, queries_together, scratch_bytes
from kernels.context import Context
from kernels.packed_entries import UNPACKING_BYTES, entry_bytes, page_bytes
from kernels.paged_attention.workspace import ITEM_BYTES, Step


def workspace_tensors(backend: str, context: Context, step: Step) -> tuple[tuple[int, ...], ...]:
    """An upper bound for one of the native backends: the bytes of each tensor, for each moment that may be the peak."""
    return _BY_BACKEND[backend](context, step)


def _torch(context: Context, step: Step) -> tuple[tuple[int, ...], ...]:
    """Of the longest sequence the entries that all of its queries share; masks of its window; and of some queries the
    entries that were chosen for them, scores and weights."""
    item, dim, heads = ITEM_BYTES[context.dtype], context.head_dim, context.num_heads
    recent = min(step.num_tokens, step.longest_context) + context.window
    everyone, chosen = _visible(context, step)
    shared = (recent + everyone) * dim * item
    masks = step.num_tokens * (recent * 3 + 16)
    packed = context.cache_dtype != "float32"
    unpacking = UNPACKING_BYTES * dim if packed else 0
    moments: list[tuple[int, ...]] = [(shared, everyone * unpacking, recent * unpacking)]
    for far, own in ((everyone, 0), (chosen, chosen)):
        each = gathered_bytes(heads, recent + far, own * (unpacking if packed else dim * item))
        rows = min(queries_together(each), step.num_tokens)
        gathered, result = rows * own * dim * item, rows * heads * dim * item
        # The scores of both kinds, all of them with their sinks, and the weights; then these in rows, with a result.
        scores = rows * heads * (recent + far + 1) * 4
        moments.append((shared, masks, rows * own * unpacking, rows * far * 9))
        moments.append((shared, masks, gathered, scores, scores, scores))
        moments.append((shared, masks, gathered, scores, scores, scores, result))
    return tuple(moments)


def _triton(context: Context, step: Step) -> tuple[tuple[int, ...], ...]:
    """The parts of decodes, and a prefill's own entries, packed."""
    seen = context.window + max(_visible(context, step))
    parts = scratch_bytes(context.num_heads, context.head_dim, seen)
    return ((parts,), (page_bytes(step.num_tokens, entry_bytes(context.head_dim, context.rotary_dim)),))


def _visible(context: Context, step: Step) -> tuple[int, int]:
    """Compressed entries that a query sees: in layers that attend to all of them, and in those that choose."""
    everyone = step.longest_context // context.least_ratio if context.least_ratio else 0
    chosen = min(context.index_top_k, step.longest_context // context.index_ratio) if context.index_heads else 0
    return everyone, chosen


_BY_BACKEND: Final[Mapping[str, Callable[[Context, Step], tuple[tuple[int, ...], ...]]]] = {
    "torch": _torch,
    "triton": _triton,
}
