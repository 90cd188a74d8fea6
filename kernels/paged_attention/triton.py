"""Paged attention in Triton: one kernel for sequences with several query tokens, two for those that decode one.

All take tiles whose rows are (token, query head) pairs that share a key-value head, so that grouped heads read the
cache once. Softmax is computed online (Milakov and Gimelshein, 2018; Dao et al., 2022), in powers of two. A decode is
divided along its context into parts of `SPLIT` tokens, which `merge_kernel` joins (flash decoding, Dao et al., 2023).
From sm_90 on, long prefills first have their pages copied together: the copy costs a few percent of the attention, and
lets the bulk copy engine feed the matrix units, which wins several times that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import architecture, cdiv, launch
from kernels.paged_attention import GATHERED_TOKENS, SCRATCH_BYTES, SPLIT, part_bytes, variants
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.paged_attention.triton_kernels import decode_kernel, gather_kernel, merge_kernel, prefill_kernel

_NO_WINDOW = (1 << 31) - 1

_prefill = functools.cache(variants.prefill)
_decode = functools.cache(variants.decode)
_merge = functools.cache(variants.merge)
_gathering = functools.cache(variants.gather)


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
    """As `reference.paged_attention`, for bfloat16 and float16 queries and `variants.HEAD_DIMS`.

    The heads of a token are contiguous in `query`, tokens may be strided; caches are contiguous and of the query's
    dtype or float8_e4m3fn, their block size is a power of two; `scale` is positive; `sinks` is float32.
    """
    arch = architecture()
    num_heads, head_dim = query.shape[1:]
    block_size, kv_heads = key_cache.shape[1:3]
    dtype = str(query.dtype).removeprefix("torch.")
    fp8 = key_cache.dtype == torch.float8_e4m3fn
    if fp8 and arch < 89:
        key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    assert query.stride(0) % 16 == 0, f"tokens {query.stride(0)} apart"
    assert block_size & (block_size - 1) == 0, f"blocks of {block_size}"
    group = num_heads // kv_heads
    decodes, num_seqs = metadata.num_decodes, len(metadata.query_lens)
    # Arguments both kernels share, of the model and the layer.
    window = _NO_WINDOW if sliding_window is None else sliding_window
    token_stride16, table_width = query.stride(0) // 16, metadata.block_tables.stride(0)
    page_shift = block_size.bit_length() - 1
    cap = soft_cap or 0.0
    sink_values = metadata.seq_lens if sinks is None else sinks  # any tensor that lives: it is not read
    if sinks is None:
        sink_values = sink_values.view(torch.float32)
    rows = variants.decode_rows(group)
    room = SCRATCH_BYTES // part_bytes(num_heads, head_dim)
    for first, count, parts in decode_runs(metadata.context_lens[:decodes], SPLIT, room):
        # Of each part: the weighted sum of values, and the largest score with the sum of weights.
        partial = torch.empty((count, num_heads, parts, head_dim), dtype=torch.float32, device=query.device)
        weights = torch.empty((count, num_heads, parts, 2), dtype=torch.float32, device=query.device)
        heads = kv_heads * cdiv(group, rows)
        few = variants.prefetches(arch) and heads * parts * count <= variants.FEW_PROGRAMS
        launch(
            decode_kernel, _decode(arch, dtype, head_dim, fp8, soft_cap is not None, rows, few), (heads, parts, count),
            query, key_cache, value_cache, out, partial, weights, sink_values, metadata.seq_lens, metadata.block_tables,
            first, token_stride16, kv_heads, group, table_width, page_shift, window, int(sinks is not None),
            scale * key_scale, cap, value_scale,
        )  # fmt: skip
        if parts > 1:
            launch(
                merge_kernel, _merge(dtype, head_dim), (num_heads, count),
                partial, weights, sink_values, out, metadata.seq_lens,
                first, num_heads, parts, window, int(sinks is not None),
            )  # fmt: skip
        del partial, weights  # before there are others
    if num_seqs > decodes:
        prefills = num_seqs - decodes
        gathered = variants.gathers(arch, head_dim) and _worth_gathering(metadata, group)
        if gathered:
            key_cache, value_cache = _gather(key_cache, value_cache, metadata, query.dtype, arch, window)
            fp8 = False
        variant = _prefill(arch, dtype, head_dim, fp8, soft_cap is not None, gathered)
        tiles = (query.shape[0] - decodes) * group // int(variant.options["ROWS"]) + prefills
        launch(
            prefill_kernel, variant, (tiles, kv_heads),
            query, key_cache, value_cache, out, sink_values,
            metadata.query_start_loc, metadata.seq_lens, metadata.block_tables,
            decodes, prefills, token_stride16, kv_heads, group, table_width, page_shift, window, int(sinks is not None),
            tiles,
            scale * key_scale, cap, value_scale,
        )  # fmt: skip
    return out


def decode_runs(context_lens: list[int], split: int, room: int) -> Iterator[tuple[int, int, int]]:
    """Neighbouring sequences to be decoded by one launch, as (first, count, parts of the longest, each of `split`
    tokens): so many that count * parts, which all of them are given, is at most `room`; at least one."""
    if not context_lens:
        return
    parts = cdiv(max(context_lens), split)
    if len(context_lens) * parts <= room:
        yield 0, len(context_lens), parts
        return
    first, parts = 0, 0
    for seq, length in enumerate(context_lens):
        longer = max(parts, cdiv(length, split))
        if seq > first and (seq - first + 1) * longer > room:
            yield first, seq - first, parts
            first, longer = seq, cdiv(length, split)
        parts = longer
    yield first, len(context_lens) - first, parts


def _worth_gathering(metadata: AttentionMetadata, group: int) -> bool:
    """Whether the prefills have enough rows for each token of their contexts to make up for a copy, and whether the
    copy stays within what the memory plan counts on: `GATHERED_TOKENS`, or one sequence however long. Of bounds
    neither can be said."""
    if metadata.bounds:
        return False
    decodes = metadata.num_decodes
    prefills = len(metadata.query_lens) - decodes
    tokens = sum(metadata.query_lens[decodes:])
    if prefills > variants.MAX_GATHERED or tokens * group < variants.ROWS_WORTH_GATHERING * prefills:
        return False
    return prefills == 1 or sum(metadata.context_lens[decodes:]) <= GATHERED_TOKENS


def _gather(
    key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, dtype: torch.dtype, arch: int, window: int
) -> tuple[Tensor, Tensor]:
    """The prefills' keys and values end to end, [sum of contexts, kv_heads, head_dim] in `dtype`."""
    decodes = metadata.num_decodes
    contexts = metadata.context_lens[decodes:]
    block_size, kv_heads, head_dim = key_cache.shape[1:]
    together = torch.empty((2, sum(contexts), kv_heads, head_dim), dtype=dtype, device=key_cache.device)
    variant = _gathering(arch, str(dtype).removeprefix("torch."), key_cache.dtype.itemsize == 1)
    launch(
        gather_kernel, variant, (cdiv(max(contexts), int(variant.options["TOKENS"])), len(contexts)),
        key_cache, value_cache, together[0], together[1],
        metadata.query_start_loc, metadata.seq_lens, metadata.block_tables,
        decodes, kv_heads * head_dim // 16, metadata.block_tables.stride(0), block_size.bit_length() - 1, window,
    )  # fmt: skip
    return together[0], together[1]
