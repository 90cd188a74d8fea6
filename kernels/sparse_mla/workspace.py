"""The device memory that sparse latent attention takes during a step, beyond the cache, its input and its result:
`paged_attention.workspace` says how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kernels.context import Context
from kernels.mla_attention import ABSORBED_TOKENS, LatentShape, scratch_bytes
from kernels.paged_attention.workspace import ITEM_BYTES, Step
from kernels.sparse_mla import queries_together


def workspace_tensors(backend: str, context: Context, step: Step) -> tuple[tuple[int, ...], ...]:
    """An upper bound for one of the native backends: the bytes of each tensor, for each moment that may be the peak."""
    return _BY_BACKEND[backend](context, LatentShape(*context.latent_shape), step)


def _torch(context: Context, shape: LatentShape, step: Step) -> tuple[tuple[int, ...], ...]:
    """The chosen latents of some queries, with their places; these queries as wide as the latents, and results."""
    entry = (shape.rank + shape.rope) * ITEM_BYTES[context.dtype]
    seen = min(context.index_top_k, step.longest_context)
    rows = min(queries_together(context.index_top_k * entry), step.num_tokens)
    absorbed = rows * context.num_heads * entry
    return ((rows * seen * entry, rows * seen * 6, absorbed, absorbed, absorbed),)


def _triton(context: Context, shape: LatentShape, step: Step) -> tuple[tuple[int, ...], ...]:
    """Queries and results as wide as the latents, and the parts of decodes."""
    absorbed = min(step.num_tokens, ABSORBED_TOKENS) * context.num_heads * shape.rank * ITEM_BYTES[context.dtype]
    return ((absorbed, absorbed, scratch_bytes(context.num_heads, shape.rank, context.index_top_k)),)


_BY_BACKEND: Final[Mapping[str, Callable[[Context, LatentShape, Step], tuple[tuple[int, ...], ...]]]] = {
    "torch": _torch,
    "triton": _triton,
}
