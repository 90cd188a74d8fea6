"""Paged attention by FlashInfer (Ye et al., 2025). It divides the work of a step among multiprocessors on the host:
that is done once a step and kind of layer, and the layers of the step share it."""

from __future__ import annotations

import functools
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernels.flashinfer import library, loading
from kernels.paged_attention import modules
from kernels.paged_attention.metadata import AttentionMetadata


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None = None,
    sinks: Tensor | None = None,
    soft_cap: float | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> Tensor:
    """As `reference.paged_attention`, for bfloat16 and float16 queries and `modules.HEAD_DIMS`, without sinks.

    The heads of a token are contiguous in `query`, tokens may be strided; both caches have the same strides, and are of
    the query's dtype or float8_e4m3fn. Cannot be captured in a CUDA graph: the host plans each step anew.
    """
    assert sinks is None, "selection chooses another backend for a model with attention sinks"
    kind = _Kind(
        query.device, query.dtype, key_cache.dtype, query.shape[1], key_cache.shape[2], query.shape[2],
        key_cache.shape[1], scale, sliding_window, soft_cap,
    )  # fmt: skip
    plan = _plan(kind)
    plan.follow(metadata)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for wrapper, rows in plan.parts:
        wrapper.run(query[rows], (key_cache, value_cache), k_scale=key_scale, v_scale=value_scale, out=out[rows])
    return out


class _Kind(NamedTuple):
    """What layers that share a plan have in common."""

    device: torch.device
    dtype: torch.dtype
    cache_dtype: torch.dtype
    num_heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    scale: float
    sliding_window: int | None
    soft_cap: float | None

    @property
    def group(self) -> int:
        return self.num_heads // self.kv_heads

    @property
    def shape(self) -> modules.Shape:
        dtype, cache_dtype = (str(name).removeprefix("torch.") for name in (self.dtype, self.cache_dtype))
        return modules.Shape(
            dtype, cache_dtype, self.head_dim, self.sliding_window is not None, self.soft_cap is not None
        )


@functools.cache
def _plan(kind: _Kind) -> _Plan:
    return _Plan(kind)


@functools.cache
def _workspace(device: torch.device, size: int) -> Tensor:
    """One for all plans: layers run one after the other, and each has read its partial results when it ends."""
    return torch.zeros(size, dtype=torch.uint8, device=device)


class _Plan:
    """FlashInfer's wrappers for one kind of layer, and how they divide the current step. `parts` yields those with work
    to do, with their rows of the query."""

    def __init__(self, kind: _Kind) -> None:
        self._kind = kind
        properties = torch.cuda.get_device_properties(kind.device)
        hopper = modules.prefills_by_hopper(kind.shape, properties.major * 10 + properties.minor)
        size = modules.partial_bytes(
            kind.group, kind.head_dim, properties.multi_processor_count, prefills_too=not hopper
        )
        workspace = _workspace(kind.device, size)
        self._decode: Any = library().BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_tensor_cores=not modules.decodes_by_vectors(kind.group), backend="fa2"
        )
        self._prefill: Any = library().BatchPrefillWithPagedKVCacheWrapper(
            workspace, "NHD", backend="fa3" if hopper else "fa2"
        )
        self._metadata: AttentionMetadata | None = None
        self._copied = torch.cuda.Event()
        self.parts: list[tuple[Any, slice]] = []

    def follow(self, metadata: AttentionMetadata) -> None:
        """Plan for the step that `metadata` describes, unless it was the last one planned."""
        if metadata is self._metadata:
            return
        kind, decodes = self._kind, metadata.num_decodes
        options = {
            "window_left": -1 if kind.sliding_window is None else kind.sliding_window - 1,
            "logits_soft_cap": kind.soft_cap,
            "sm_scale": kind.scale,
            "q_data_type": kind.dtype,
            "kv_data_type": kind.cache_dtype,
        }
        sizes = (kind.num_heads, kind.kv_heads, kind.head_dim, kind.block_size)
        self.parts = []
        # A plan is copied to the device from memory that the next one is written into.
        self._copied.synchronize()
        with loading("paged_attention"):
            if decodes:
                self._decode.plan(*_pages(metadata, 0, decodes, kind.block_size), *sizes, **options)
                self.parts.append((self._decode, slice(decodes)))
            if decodes < len(metadata.query_lens):
                starts = torch.tensor([0, *accumulate(metadata.query_lens[decodes:])], dtype=torch.int32)
                pages = _pages(metadata, decodes, len(metadata.query_lens), kind.block_size)
                self._prefill.plan(starts, *pages, *sizes, causal=True, **options)
                self.parts.append((self._prefill, slice(decodes, None)))
        self._copied.record()
        self._metadata = metadata


def _pages(metadata: AttentionMetadata, first: int, last: int, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The block tables of sequences `first` to `last` as FlashInfer takes them: where each sequence's pages begin (on
    the host), all pages in one row (on the device), how many tokens each last page holds (on the host)."""
    lens = np.array(metadata.context_lens[first:last], dtype=np.int32)
    counts = -(-lens // block_size)
    starts = np.concatenate(([0], counts.cumsum())).astype(np.int32)
    # A place in the table for each page: the row's begin, and how far into the row.
    width = metadata.block_tables.shape[1]
    rows = np.arange(first, last, dtype=np.int64) * width - starts[:-1]
    places = torch.from_numpy(np.repeat(rows, counts) + np.arange(starts[-1]))
    table = metadata.block_tables.reshape(-1)
    pages = table.index_select(0, places.to(table.device, non_blocking=True))
    return torch.from_numpy(starts), pages, torch.from_numpy((lens - 1) % block_size + 1)
