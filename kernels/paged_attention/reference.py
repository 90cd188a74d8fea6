"""Paged attention in plain torch: gathers the pages, then calls torch's own attention. It serves the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.paged_attention import GATHERED_TOKENS
from kernels.paged_attention.metadata import AttentionMetadata

CPU_CACHE_BYTES = 1 << 20
"""A usual second-level cache of one core: the most that is gathered at once of several sequences' keys, and as much of
their values."""


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
    """softmax(q k^T * scale) v, causal, over each sequence's own pages.

    Args:
        query: [T, heads, head_dim]; heads is a multiple of kv_heads, neighbouring heads share one (GQA).
        key_cache, value_cache: [blocks, block_size, kv_heads, head_dim], the new tokens already written.
        metadata: which rows of `query` and which blocks belong to which sequence.
        sliding_window: a token sees itself and the `sliding_window` - 1 tokens before it; None for all.
        sinks: [heads] float32, a score of each head that takes its share of the softmax and adds no value (Xiao et al.,
            2023, as in GPT-OSS).
        soft_cap: scores become soft_cap * tanh(score / soft_cap) (Gemma Team, 2024).
        key_scale, value_scale: by which a cache of float8_e4m3fn is multiplied, see `rotary_cache`.

    Returns:
        [T, heads, head_dim], new, in the dtype of `query`.
    """
    layer = _Layer(key_cache, value_cache, scale, sliding_window, sinks, soft_cap, key_scale, value_scale)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    decodes = metadata.num_decodes
    if metadata.bounds:  # as a graph has them: the lengths are on the device
        metadata = replace(
            metadata,
            query_lens=metadata.query_start_loc.diff().tolist(),
            context_lens=metadata.seq_lens.tolist(),
            bounds=False,
        )
    for rows in decode_groups(metadata.context_lens[:decodes], gathered_together(key_cache)):
        out[rows] = _decode(query[rows], layer, metadata, rows)
    start = decodes
    for i in range(decodes, len(metadata.query_lens)):
        end = start + metadata.query_lens[i]
        blocks = metadata.block_tables[i]
        length = metadata.context_lens[i]
        _prefill(query[start:end], layer, blocks, length, out[start:end])
        start = end
    return out


class _Layer(NamedTuple):
    """What is the same for every sequence."""

    key_cache: Tensor
    value_cache: Tensor
    scale: float
    sliding_window: int | None
    sinks: Tensor | None
    soft_cap: float | None
    key_scale: float
    value_scale: float

    def gather(self, blocks: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values [*blocks.shape, block_size, kv_heads, head_dim]."""
        return (
            _gather(self.key_cache, blocks, self.key_scale, dtype),
            _gather(self.value_cache, blocks, self.value_scale, dtype),
        )


def _gather(cache: Tensor, blocks: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    # Copies whole blocks, which indexing by a tensor does element by element.
    fp8 = cache.dtype == torch.float8_e4m3fn
    found = (cache.view(torch.uint8) if fp8 else cache).index_select(0, blocks.flatten())
    wide: Tensor = found.view(cache.dtype).to(dtype).view(*blocks.shape, *cache.shape[1:])
    return wide * scale if fp8 and scale != 1 else wide


def _attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, layer: _Layer, sinks: Tensor | None
) -> Tensor:
    """`query` [..., N, head_dim] over `key` and `value` [..., L, head_dim], all of it if `visible` is None; `sinks`
    broadcasts with [..., N, 1]."""
    if layer.soft_cap is None and sinks is None:
        return scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=layer.scale)
    scores = (query.float() @ key.float().transpose(-1, -2)) * layer.scale
    if layer.soft_cap is not None:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    if visible is not None:
        scores.masked_fill_(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[-2]]
    return (weights @ value.float()).to(query.dtype)


def gathered_together(cache: Tensor) -> int:
    """How many tokens are gathered together. On a CPU attention reads them while they are in its second-level cache: a
    step of 32 sequences of 530 tokens takes 0.83 of the time, and one of lengths from 20 to 900, with less padding,
    0.6."""
    if cache.device.type != "cpu":
        return GATHERED_TOKENS
    return min(GATHERED_TOKENS, CPU_CACHE_BYTES // cache[0, 0].nbytes)


def decode_groups(context_lens: list[int], room: int) -> Iterator[list[int] | slice]:
    """Rows to be computed together: sequences of like length, so that padding to the longest wastes little, and few
    enough that their gathered pages stay within `room` tokens."""
    if not context_lens:
        return
    if len(context_lens) * max(context_lens) <= room:
        yield slice(len(context_lens))
        return
    group: list[int] = []
    for row in sorted(range(len(context_lens)), key=context_lens.__getitem__):
        if group and (len(group) + 1) * context_lens[row] > room:
            yield group
            group = []
        group.append(row)
    yield group


def _decode(query: Tensor, layer: _Layer, metadata: AttentionMetadata, rows: list[int] | slice) -> Tensor:
    """Several sequences at once, `query` [S, heads, head_dim] being the rows `rows` of the batch; the heads that share
    a kv head stand where a query's length would."""
    num_seqs, num_heads, head_dim = query.shape
    block_size, kv_heads = layer.key_cache.shape[1:3]
    lens = metadata.context_lens[rows] if isinstance(rows, slice) else [metadata.context_lens[row] for row in rows]
    longest = max(lens)
    blocks = metadata.block_tables[rows, : -(-longest // block_size)]
    gathered = [pages.flatten(1, 2)[:, :longest] for pages in layer.gather(blocks, query.dtype)]
    visible = None
    window = layer.sliding_window
    if min(lens) < longest or (window is not None and window < longest):
        position = torch.arange(longest, device=query.device)
        lengths = metadata.seq_lens[rows, None]
        visible = position < lengths
        if window is not None:
            visible &= position >= lengths - window
        # What was gathered from slots of others: NaN times a weight of 0 is NaN. Only the padding is gone through.
        for row, length in enumerate(lens):
            if length < longest:
                for tensor in gathered:
                    tensor[row, length:].zero_()
        visible = visible[:, None, None, :]
    key, value = (tensor.transpose(1, 2) for tensor in gathered)  # [S, kv_heads, L, head_dim]
    grouped = query.view(num_seqs, kv_heads, num_heads // kv_heads, head_dim)
    sinks = None if layer.sinks is None else layer.sinks.view(kv_heads, -1, 1)
    return _attend(grouped, key, value, visible, layer, sinks).reshape(num_seqs, num_heads, head_dim)


def _prefill(query: Tensor, layer: _Layer, blocks: Tensor, length: int, out: Tensor) -> None:
    """One sequence, whole or a chunk that continues one: `query` [N, heads, head_dim] are its last N tokens."""
    num_tokens, num_heads, head_dim = query.shape
    block_size, kv_heads = layer.key_cache.shape[1:3]
    blocks = blocks[: -(-length // block_size)]
    group = num_heads // kv_heads
    key, value = (
        gathered.flatten(0, 1)[:length].transpose(0, 1)[:, None].expand(-1, group, -1, -1)  # [kv_heads, group, L, D]
        for gathered in layer.gather(blocks, query.dtype)
    )
    grouped = query.view(num_tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3)  # [kv_heads, group, N, head_dim]
    window = layer.sliding_window
    if num_tokens == length and layer.soft_cap is None and layer.sinks is None and (window is None or window >= length):
        # Told so, torch does not even compute what is not visible.
        result = scaled_dot_product_attention(grouped, key, value, is_causal=True, scale=layer.scale)
    else:
        position = torch.arange(length, device=query.device)
        own = position[length - num_tokens :, None]
        visible = position <= own  # [N, L]
        if window is not None:
            visible &= position > own - window
        sinks = None if layer.sinks is None else layer.sinks.view(kv_heads, group, 1, 1)
        result = _attend(grouped, key, value, visible, layer, sinks)
    out.copy_(result.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim))
