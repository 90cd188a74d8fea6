"""The device memory that the native engine's indexers take during a step, beyond the cache, their input and what they
choose, as `paged_attention.workspace` has it of attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kernels.context import Context
from kernels.indexer import key_bytes, queries_together, score_bytes
from kernels.paged_attention.workspace import Step

_PLACE: Final = 8  # bytes of a token's number in torch
_LARGEST_BLOCK: Final = 64  # tokens; contexts are copied in whole blocks


def workspace_tensors(backend: str, context: Context, step: Step) -> tuple[tuple[int, ...], ...]:
    """Tensor by tensor, for each moment that may be the peak. The queries are among them, which are there in place of
    attention's own."""
    heads, dim = context.index_heads, context.index_head_dim
    of_token = heads * (key_bytes(dim, context.index_mxfp4) if context.index_mxfp4 else dim)
    queries = step.num_tokens * (4 * heads * dim if context.cache_dtype == "float32" else of_token)
    return tuple((queries, *tensors) for tensors in _BY_BACKEND[backend](context, step))


def _torch(context: Context, step: Step) -> tuple[tuple[int, ...], ...]:
    """A context's keys in float32, as they are copied out of their blocks, and multiplied by the queries of so many
    tokens, of which the heads are summed and masked; or the places of queries that see all there is."""
    length, heads, dim = step.longest_context // context.index_ratio, context.index_heads, context.index_head_dim
    few = min(context.index_top_k, length)
    places = step.num_tokens * few * (_PLACE + 1)
    if length <= context.index_top_k:
        return ((places, length * _PLACE),)
    keys = (length + _LARGEST_BLOCK) * dim * 4
    rows = min(
        queries_together(2 * heads * length * 4), step.num_tokens, (length - context.index_top_k) * context.index_ratio
    )
    products, scores, queries = rows * heads * length * 4, rows * length * 4, rows * heads * dim * 4
    copies: tuple[int, ...] = (keys, (length + _LARGEST_BLOCK) * key_bytes(dim, context.index_mxfp4))
    if context.cache_dtype == "float32":
        copies, queries = (), 0
    return (
        (places, length * _PLACE),
        (length * _PLACE, keys, *copies),
        (length * _PLACE, keys, queries, products, scores, length * _PLACE, scores // 4),
        (length * _PLACE, keys, scores, scores, 2 * scores, *(3 * (scores // 4,)), 2 * rows * few * _PLACE),
    )


def _triton(context: Context, step: Step) -> tuple[tuple[int, ...], ...]:
    """The scores of so many queries."""
    width = -(-step.longest_context // 4) * 4
    return ((score_bytes(width * 4, step.num_tokens),),)


_BY_BACKEND: Final[Mapping[str, Callable[[Context, Step], tuple[tuple[int, ...], ...]]]] = {
    "torch": _torch,
    "triton": _triton,
}
