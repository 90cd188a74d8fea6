"""The memory that the gated delta rule takes during a step, beyond its inputs, the states and its result. It is for the
memory plan, which is made before anything is loaded and imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kernels.context import Context
from kernels.delta_rule import CHUNK, variants


def workspace_bytes(backend: str, context: Context, num_tokens: int, num_seqs: int) -> int:
    """An upper bound for one of the native backends, in bytes, of a step's tokens and sequences."""
    return _BY_BACKEND[backend](context, num_tokens, num_seqs)


def _torch(context: Context, num_tokens: int, num_seqs: int) -> int:
    """In float32: of each token its queries, keys and values, by value heads, then in whole chunks; the system of each
    chunk and what it is solved for; of a decode the states, copied out of their rows."""
    key_dim, value_dim = context.gated_delta_head_dim, context.gated_delta_value_dim
    of_token = 7 * key_dim + 6 * value_dim + 5 * CHUNK
    tokens = -(-num_tokens // CHUNK) * CHUNK
    decodes = num_seqs * key_dim * value_dim
    return 4 * context.gated_delta_value_heads * (tokens * of_token + decodes)


def _triton(context: Context, num_tokens: int, num_seqs: int) -> int:
    """What a prefill's first launch leaves for the second: two readers of the state and a correction of each token, the
    scale of its key, and a number for each chunk."""
    of_token = 2 * (2 * context.gated_delta_head_dim + context.gated_delta_value_dim) + 4
    tiles = num_tokens // variants.CHUNK + num_seqs
    return context.gated_delta_value_heads * (num_tokens * of_token + 4 * tiles)


_BY_BACKEND: Final[Mapping[str, Callable[[Context, int, int], int]]] = {"torch": _torch, "triton": _triton}
