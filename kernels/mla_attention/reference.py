"""Latent attention in plain torch: gathers the pages, then calls torch's own attention. It serves the CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, scaled_dot_product_attention

from kernels.mla_attention import heads_together
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.paged_attention.reference import decode_groups, gathered_together


def mla_attention(query: Tensor, cache: Tensor, kv_b: Tensor, metadata: AttentionMetadata, scale: float) -> Tensor:
    """softmax(q k^T * scale) v, causal, over each sequence's own pages, with k = [c Wk^T, r] and v = c Wv^T of each
    head for a token's content c and key for positions r (DeepSeek-AI, 2024, "DeepSeek-V2").

    A decode multiplies its query by Wk and its result by Wv instead, which is equal and leaves the context as it lies
    in the cache; a prefill expands the context.

    Args:
        query: [T, heads, nope + rope], as `latent_cache` leaves it.
        cache: [blocks, block_size, rank + rope], the new tokens already written.
        kv_b: [heads, nope + value, rank]: Wk, then Wv of each head.
        metadata: which rows of `query` and which blocks belong to which sequence.

    Returns:
        [T, heads, value], new, in the dtype of `query`.
    """
    nope = query.shape[-1] - (cache.shape[-1] - kv_b.shape[-1])
    out = query.new_empty((*query.shape[:2], kv_b.shape[1] - nope))
    decodes = metadata.num_decodes
    for rows in decode_groups(metadata.context_lens[:decodes], gathered_together(cache)):
        out[rows] = _decode(query[rows], cache, kv_b, metadata, rows, scale)
    start = decodes
    for seq in range(decodes, len(metadata.query_lens)):
        end = start + metadata.query_lens[seq]
        entries = _gather(cache, metadata.block_tables[seq], metadata.context_lens[seq])
        _prefill(query[start:end], entries, kv_b, scale, out[start:end])
        start = end
    return out


def _gather(cache: Tensor, blocks: Tensor, longest: int) -> Tensor:
    """[*sequences, longest, rank + rope]."""
    blocks = blocks[..., : -(-longest // cache.shape[1])]
    found = cache.index_select(0, blocks.flatten())
    return found.view(*blocks.shape[:-1], -1, cache.shape[-1])[..., :longest, :]


def _decode(
    query: Tensor, cache: Tensor, kv_b: Tensor, metadata: AttentionMetadata, rows: list[int] | slice, scale: float
) -> Tensor:
    """Several sequences at once, `query` [S, heads, nope + rope] being the rows `rows` of the batch."""
    rank = kv_b.shape[-1]
    rope = cache.shape[-1] - rank
    lens = metadata.context_lens[rows] if isinstance(rows, slice) else [metadata.context_lens[row] for row in rows]
    longest = max(lens)
    entries = _gather(cache, metadata.block_tables[rows], longest)
    visible = None
    if min(lens) < longest:
        visible = (torch.arange(longest, device=query.device) < metadata.seq_lens[rows, None])[:, None, None, :]
        # What was gathered from slots of others: NaN times a weight of 0 is NaN. Only the padding is gone through.
        for row, length in enumerate(lens):
            entries[row, length:].zero_()
    content, key = query.split((query.shape[-1] - rope, rope), dim=-1)
    to_keys, to_values = kv_b.split((content.shape[-1], kv_b.shape[1] - content.shape[-1]), dim=1)
    absorbed = torch.cat(((content.transpose(0, 1) @ to_keys).transpose(0, 1), key), dim=-1)  # [S, heads, rank + rope]
    # The heads stand where a query's length would. Values as wide as keys: torch has its fast attention for those.
    context = entries.unsqueeze(1)
    attended = scaled_dot_product_attention(absorbed.unsqueeze(1), context, context, attn_mask=visible, scale=scale)
    result = torch.bmm(attended.squeeze(1)[..., :rank].transpose(0, 1), to_values.transpose(1, 2))
    return result.transpose(0, 1)


def _prefill(query: Tensor, entries: Tensor, kv_b: Tensor, scale: float, out: Tensor) -> None:
    """One sequence, whole or a chunk that continues one: `query` [N, heads, nope + rope] are the last N of the tokens
    whose `entries` [L, rank + rope] are given."""
    num_tokens, num_heads, head_dim = query.shape
    rank, length = kv_b.shape[-1], entries.shape[0]
    content, shared = entries[:, :rank], entries[:, rank:]
    nope = head_dim - shared.shape[-1]
    value_dim = kv_b.shape[1] - nope
    # Keys and values are padded to the same width: torch has its fast attention for those.
    width = max(head_dim, value_dim)
    visible = None
    if num_tokens < length:
        position = torch.arange(length, device=query.device)
        visible = position <= position[length - num_tokens :, None]  # [N, L]
    group = heads_together(length * (kv_b.shape[1] + 2 * width) * query.element_size(), num_heads)
    for first in range(0, num_heads, group):
        heads = slice(first, min(first + group, num_heads))
        expanded = linear(content, kv_b[heads].flatten(0, 1)).view(length, -1, kv_b.shape[1])
        key = torch.cat((expanded[..., :nope], shared.unsqueeze(1).expand(-1, expanded.shape[1], -1)), dim=-1)
        result = scaled_dot_product_attention(
            _by_heads(query[:, heads], width), _by_heads(key, width), _by_heads(expanded[..., nope:], width),
            attn_mask=visible, is_causal=visible is None, scale=scale,
        )  # fmt: skip
        out[:, heads] = result[0].transpose(0, 1)[..., :value_dim]
        del expanded, key, result  # before there are others


def _by_heads(x: Tensor, width: int) -> Tensor:
    """[L, heads, D] as [1, heads, L, width]."""
    return (x if x.shape[-1] == width else pad(x, (0, width - x.shape[-1]))).transpose(0, 1)[None]
