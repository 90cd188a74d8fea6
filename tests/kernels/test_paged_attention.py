"""Paged attention against attention written out by its definition, one query token at a time."""

from __future__ import annotations

import pytest
import torch

from kernels.paged_attention import reference
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.paged_attention.reference import paged_attention


def by_definition(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None):
    """query [n, H, D] for the last n positions of keys and values [L, KVH, D]."""
    group = query.shape[1] // keys.shape[1]
    out = torch.empty_like(query)
    for i in range(query.shape[0]):
        last = keys.shape[0] - query.shape[0] + i
        first = max(0, last - window + 1) if window else 0
        for head in range(query.shape[1]):
            k, v = keys[first : last + 1, head // group], values[first : last + 1, head // group]
            out[i, head] = torch.softmax(k @ query[i, head] * scale, 0) @ v
    return out


@pytest.fixture(params=[32_768, 12], ids=["gathered at once", "gathered in groups"])
def _gathering(request, monkeypatch):
    monkeypatch.setattr("kernels.paged_attention.reference.GATHERED_TOKENS", request.param)


@pytest.mark.usefixtures("_gathering")
@pytest.mark.parametrize("window", [None, 1, 7])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (5, 1)])
@pytest.mark.parametrize("queries", [[1], [13], [1, 1, 1, 1], [1, 1, 5, 17], [3, 1]])
def test_agrees_with_the_definition(heads, kv_heads, queries, window):
    """Decode, prefill, chunked prefill and mixed batches; unused cache slots hold NaN, which must not leak in."""
    torch.manual_seed(1)
    block_size, head_dim, scale = 4, 8, 8**-0.5
    contexts = [n + extra for n, extra in zip(queries, [9, 0, 30, 6], strict=False)]
    blocks_each = [-(-length // block_size) for length in contexts]
    order = torch.randperm(sum(blocks_each) + 3)[: sum(blocks_each)].tolist()
    cache_shape = (sum(blocks_each) + 3, block_size, kv_heads, head_dim)
    key_cache, value_cache = torch.full(cache_shape, torch.nan), torch.full(cache_shape, torch.nan)
    block_tables = torch.zeros((len(queries), max(blocks_each)), dtype=torch.int32)
    keys, values, slots = [], [], []
    for i, length in enumerate(contexts):
        own = [order.pop() for _ in range(blocks_each[i])]
        block_tables[i, : len(own)] = torch.tensor(own)
        keys.append(torch.randn(length, kv_heads, head_dim))
        values.append(torch.randn(length, kv_heads, head_dim))
        slots.append(torch.tensor([own[p // block_size] * block_size + p % block_size for p in range(length)]))
        for given, cache in ((keys[i], key_cache), (values[i], value_cache)):
            cache.flatten(0, 1)[slots[i]] = given
    decodes = next((i for i, n in enumerate(queries) if n > 1), len(queries))
    starts = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    metadata = AttentionMetadata(
        queries, contexts, decodes, starts, torch.tensor(contexts, dtype=torch.int32), block_tables, torch.cat(slots)
    )
    query = torch.randn(sum(queries), heads, head_dim)
    out = paged_attention(query, key_cache, value_cache, metadata, scale, window)
    for i, part in enumerate(query.split(queries)):
        expected = by_definition(part, keys[i], values[i], scale, window)
        torch.testing.assert_close(out[starts[i] : starts[i + 1]], expected, atol=1e-5, rtol=1e-5)


def test_on_a_cpu_sequences_are_gathered_while_their_keys_fit_in_its_cache(monkeypatch):
    gathered = []
    gather = reference._gather

    def recorded(cache, blocks, *others):
        gathered.append(gather(cache, blocks, *others))
        return gathered[-1]

    monkeypatch.setattr(reference, "_gather", recorded)
    count, length, block_size, heads, head_dim = 24, 96, 16, 8, 64
    blocks = torch.arange(count * length // block_size, dtype=torch.int32).view(count, -1)
    cache = torch.randn(blocks.numel(), block_size, heads, head_dim)
    lens = torch.full((count,), length, dtype=torch.int32)
    starts = torch.arange(count + 1, dtype=torch.int32)
    metadata = AttentionMetadata([1] * count, [length] * count, count, starts, lens, blocks, starts[:-1].long())
    paged_attention(torch.randn(count, heads, head_dim), cache, cache, metadata, 1.0)
    sizes = [part.nbytes for part in gathered]
    assert sum(sizes) == 2 * cache.nbytes
    assert max(sizes) <= reference.CPU_CACHE_BYTES
    assert len(sizes) < 2 * count  # several at a time
