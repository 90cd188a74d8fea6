"""An indexer's queries, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import float4
from kernels.index_cache.reference import hadamard, quantise
from kernels.window_entries.reference import turn_last


def index_query(
    query: Tensor, weights: Tensor, positions: Tensor, cos_sin: Tensor, cache: Tensor, mxfp4: bool = False
) -> tuple[Tensor, Tensor]:
    """As `index_cache` has them, but that the *last* R numbers of a head turn, in neighbouring pairs.

    Args:
        query: [T, heads, head_dim], contiguous; what it holds afterwards is undefined.
        weights: [T, heads] float32, rows strided.
        positions: [T], int64.
        cos_sin: [max_position, R].
        cache: where the keys are; in pages of bytes they are transformed and rounded, and so are the queries then.
        mxfp4: to 4 bits rather than 8.

    Returns:
        queries and weights, as `indexer` takes them. Those of queries in 8 bits have taken in their scales.
    """
    heads, dim = query.shape[1:]
    turn_last(query, positions, cos_sin)
    weights = weights * (heads**-0.5 * dim**-0.5)
    if cache.dtype != torch.uint8:
        return query, weights
    if mxfp4:
        return torch.cat([part.flatten(1) for part in float4.quantise(hadamard(query))], dim=1), weights
    codes, scale = quantise(hadamard(query), group=dim)
    return codes, weights * scale.squeeze(-1)
