"""Paged attention in plain torch: gathers the pages, then calls torch's own attention. It serves the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.paged_attention import GATHERED_TOKENS
from kernels.paged_attention.metadata import AttentionMetadata


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None = None,
) -> Tensor:
    """softmax(q k^T * scale) v, causal, over each sequence's own pages.

    Args:
        query: [T, heads, head_dim]; heads is a multiple of kv_heads, neighbouring heads share one (GQA).
        key_cache, value_cache: [blocks, block_size, kv_heads, head_dim], the new tokens already written.
        metadata: which rows of `query` and which blocks belong to which sequence.
        sliding_window: a token sees itself and the `sliding_window` - 1 tokens before it; None for all.

    Returns:
        [T, heads, head_dim], new, in the dtype of `query`.
    """
    out = torch.empty_like(query)
    decodes = metadata.num_decodes
    for rows in _decode_groups(metadata.context_lens[:decodes]):
        out[rows] = _decode(query[rows], key_cache, value_cache, metadata, rows, scale, sliding_window)
    start = decodes
    for i in range(decodes, len(metadata.query_lens)):
        end = start + metadata.query_lens[i]
        blocks = metadata.block_tables[i]
        length = metadata.context_lens[i]
        _prefill(query[start:end], key_cache, value_cache, blocks, length, scale, sliding_window, out[start:end])
        start = end
    return out


def _decode_groups(context_lens: list[int]) -> Iterator[list[int] | slice]:
    """Rows to be computed together: sequences of like length, so that padding to the longest wastes little, and few
    enough that their gathered pages stay within `GATHERED_TOKENS`."""
    if not context_lens:
        return
    if len(context_lens) * max(context_lens) <= GATHERED_TOKENS:
        yield slice(len(context_lens))
        return
    group: list[int] = []
    for row in sorted(range(len(context_lens)), key=context_lens.__getitem__):
        if group and (len(group) + 1) * context_lens[row] > GATHERED_TOKENS:
            yield group
            group = []
        group.append(row)
    yield group


def _decode(
    query: Tensor,  # [S, heads, head_dim], the rows `rows` of the batch
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    rows: list[int] | slice,
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    """Several sequences at once; the heads that share a kv head stand where a query's length would."""
    num_seqs, num_heads, head_dim = query.shape
    block_size, kv_heads = key_cache.shape[1:3]
    lens = metadata.context_lens[rows] if isinstance(rows, slice) else [metadata.context_lens[row] for row in rows]
    longest = max(lens)
    blocks = metadata.block_tables[rows, : -(-longest // block_size)]
    key = key_cache[blocks].flatten(1, 2)[:, :longest].transpose(1, 2)  # [S, kv_heads, L, head_dim]
    value = value_cache[blocks].flatten(1, 2)[:, :longest].transpose(1, 2)
    position = torch.arange(longest, device=query.device)
    lengths = metadata.seq_lens[rows, None]
    visible = position < lengths
    if sliding_window is not None:
        visible &= position >= lengths - sliding_window
    grouped = query.view(num_seqs, kv_heads, num_heads // kv_heads, head_dim)
    result = scaled_dot_product_attention(
        grouped, key.to(query.dtype), value.to(query.dtype), attn_mask=visible[:, None, None, :], scale=scale
    )
    return result.reshape(num_seqs, num_heads, head_dim)


def _prefill(
    query: Tensor,  # [N, heads, head_dim], the last N tokens of the context
    key_cache: Tensor,
    value_cache: Tensor,
    blocks: Tensor,
    length: int,
    scale: float,
    sliding_window: int | None,
    out: Tensor,
) -> None:
    """One sequence, whole or a chunk that continues one."""
    num_tokens, num_heads, head_dim = query.shape
    block_size, kv_heads = key_cache.shape[1:3]
    blocks = blocks[: -(-length // block_size)]
    group = num_heads // kv_heads
    key = key_cache[blocks].flatten(0, 1)[:length].transpose(0, 1)[:, None]  # [kv_heads, 1, L, head_dim]
    value = value_cache[blocks].flatten(0, 1)[:length].transpose(0, 1)[:, None]
    position = torch.arange(length, device=query.device)
    own = position[length - num_tokens :, None]
    visible = position <= own  # [N, L]
    if sliding_window is not None:
        visible &= position > own - sliding_window
    grouped = query.view(num_tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3)  # [kv_heads, group, N, head_dim]
    result = scaled_dot_product_attention(
        grouped,
        key.to(query.dtype).expand(-1, group, -1, -1),
        value.to(query.dtype).expand(-1, group, -1, -1),
        attn_mask=visible,
        scale=scale,
    )
    out.copy_(result.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim))
