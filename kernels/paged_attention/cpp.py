"""Paged attention on a processor, by `kernels/cpu/attention.cpp`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.library import functions, threads
from kernels.paged_attention.metadata import AttentionMetadata

_attend = functions().ingot_paged_attention


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None = None,
    sinks: Tensor | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """As `reference.paged_attention`, for caches in the dtype of `query`: float32 or bfloat16."""
    num_tokens, heads, head_dim = query.shape
    out = torch.empty((num_tokens, heads, head_dim), dtype=query.dtype)
    _, block_size, kv_heads, _ = key_cache.shape
    starts, tables = metadata.query_start_loc, metadata.block_tables
    if query.stride(1) != head_dim or query.stride(2) != 1:
        query = query.contiguous()
    _attend(
        query.dtype is torch.bfloat16, query.data_ptr(), key_cache.data_ptr(), value_cache.data_ptr(), out.data_ptr(),
        query.stride(0), *key_cache.stride()[:3], starts.data_ptr(), metadata.seq_lens.data_ptr(), tables.data_ptr(),
        tables.stride(0), starts.shape[0] - 1, block_size, heads, kv_heads, head_dim, scale, sliding_window or 0,
        None if sinks is None else sinks.data_ptr(), soft_cap or 0.0, threads(),
    )  # fmt: skip
    return out
