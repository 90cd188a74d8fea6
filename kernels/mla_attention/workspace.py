"""The device memory the native engine's latent attention takes during a step, beyond the cache, its input and its
result, as `paged_attention.workspace` has it of other attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kernels.context import Context
from kernels.mla_attention import ABSORBED_TOKENS, LatentShape, absorbs, expanded_bytes, scratch_bytes
from kernels.paged_attention.workspace import ITEM_BYTES, Step, gathered_tokens

_SMALLEST_BLOCK: Final = 16  # tokens


def workspace_bytes(backend: str, context: Context, step: Step) -> int:
    """An upper bound for one of the native backends, in bytes. It never shrinks when a number of `step` grows."""
    return max(sum(tensors) for tensors in workspace_tensors(backend, context, step))


def workspace_tensors(backend: str, context: Context, step: Step) -> tuple[tuple[int, ...], ...]:
    """The same tensor by tensor, for each moment that may be the peak."""
    shape = LatentShape(*context.latent_shape)
    return _BY_BACKEND[backend](context, shape, _without_choice(shape, context, step) if context.index_top_k else step)


def _without_choice(shape: LatentShape, context: Context, step: Step) -> Step:
    """What is left of a step where others choose: prefills of short contexts, of which few are long enough to be
    expanded."""
    expanded = next(count for count in range(1, step.num_tokens + 2) if absorbs(shape, step.num_tokens // count))
    return Step(step.num_tokens, min(expanded, step.num_seqs), min(step.longest_context, context.index_top_k))


def _torch(context: Context, shape: LatentShape, step: Step) -> tuple[tuple[int, ...], ...]:
    """Latents copied out of their blocks: of several sequences that decode, with their queries as wide as the latents
    twice and results once; or of one prefill, with keys and values of some heads, their queries and results, and a
    chunk's mask against its context, as it is computed and as torch's attention takes it."""
    item, length = ITEM_BYTES[context.dtype], step.longest_context
    entry = (shape.rank + shape.rope) * item
    absorbed = step.num_seqs * context.num_heads * entry
    width = max(shape.nope + shape.rope, shape.value) * item
    head = length * ((shape.nope + shape.value) * item + 2 * width)  # as expanded, then key and value of one width
    expanded = expanded_bytes(head, context.num_heads)
    queries = step.num_tokens * context.num_heads * width
    mask = min(step.num_tokens, length) * length
    return (
        (gathered_tokens(step) * entry, absorbed, absorbed, absorbed),
        (length * entry, expanded, queries, queries, mask, mask * item),
    )


def _triton(context: Context, shape: LatentShape, step: Step) -> tuple[tuple[int, ...], ...]:
    """Queries and results as wide as the latents, the parts of decodes, and the block table of a short chunk's tokens;
    or the latents of prefills together, and the keys and values of some heads."""
    item, length = ITEM_BYTES[context.dtype], step.longest_context
    tokens = min(step.num_tokens, ABSORBED_TOKENS)
    absorbed = tokens * context.num_heads * shape.rank * item
    parts = scratch_bytes(context.num_heads, shape.rank, length)
    tables = tokens * -(-length // _SMALLEST_BLOCK) * 4
    gathered = gathered_tokens(step)
    expanded = expanded_bytes(gathered * (shape.nope + shape.value) * item, context.num_heads)
    return (absorbed, absorbed, parts, tables), (gathered * (shape.rank + shape.rope) * item, expanded)


_BY_BACKEND: Final[Mapping[str, Callable[[Context, LatentShape, Step], tuple[tuple[int, ...], ...]]]] = {
    "torch": _torch,
    "triton": _triton,
}
