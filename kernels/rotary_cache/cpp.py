"""Heads to attention and its cache on a processor, by `kernels/cpu/rows.cpp`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.library import functions, threads

_turn = functions().ingot_rotary_cache


def rotary_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
    interleaved: bool = False,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    offset: float = 0.0,
) -> None:
    """As `reference.rotary_cache`, of float32 or bfloat16, with contiguous caches in the same; a token's heads lie side
    by side."""
    assert key_scale == value_scale == 1.0, "only caches in 8 bits have scales"
    tokens, heads, head_dim = query.shape
    query_norm, key_norm = (None, None) if norms is None else (norms[0].data_ptr(), norms[1].data_ptr())
    _turn(
        query.dtype is torch.bfloat16, query.data_ptr(), key.data_ptr(), value.data_ptr(), query.stride(0),
        key.stride(0), value.stride(0), positions.data_ptr(), cos_sin.data_ptr(), cos_sin.shape[1],
        key_cache.data_ptr(), value_cache.data_ptr(), slot_mapping.data_ptr(), tokens, heads, key.shape[1], head_dim,
        query_norm, key_norm, eps, offset, interleaved, threads(),
    )  # fmt: skip
