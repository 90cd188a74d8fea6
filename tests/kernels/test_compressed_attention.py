"""DeepSeek V4's attention: torch against the definition, for decodes and prefills of several sequences together."""

from __future__ import annotations

import pytest
import torch

from kernels import compressed_attention
from kernels.cases import randn
from kernels.compressed_attention.reference import Entries
from kernels.compressed_attention.reference import compressed_attention as attend
from kernels.grouped_linear.reference import grouped_linear
from kernels.index_query.reference import index_query
from kernels.indexer.chosen import Chosen
from kernels.indexer.reference import indexer
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies
from kernels.window_entries.reference import turn_last, window_entries

CPU = torch.device("cpu")
HEADS, DIM, ROPE, WINDOW, RATIO, BLOCK = 3, 16, 8, 10, 4, 16
TABLE = cos_sin_table(*inverse_frequencies(ROPE, 10_000.0), 128, torch.float32)
SINKS = torch.tensor([0.3, -2.0, 1.5])
# New tokens and all, of each sequence: two decode, one of them before any entry; two prefill, one from its beginning.
QUERIES, CONTEXTS = (1, 1, 5, 40), (2, 37, 30, 40)


def geometry() -> AttentionMetadata:
    tables = torch.randperm(12, generator=torch.Generator().manual_seed(3)).view(4, 3).int()
    starts = torch.tensor([0, *QUERIES], dtype=torch.int32).cumsum(0).int()
    lengths = torch.tensor(CONTEXTS, dtype=torch.int32)
    return AttentionMetadata(list(QUERIES), list(CONTEXTS), 2, starts, lengths, tables, torch.zeros(47))


@pytest.mark.parametrize("kind", ["window", "all", "chosen"])
@pytest.mark.parametrize("together", [1 << 30, 1])
def test_it_follows_its_definition(monkeypatch, kind, together):
    """However few queries are computed together."""
    monkeypatch.setattr(compressed_attention, "GATHERED_BYTES", together)
    metadata, rows = geometry(), torch.tensor([4, 0, 2, 1])
    entries = [randn((length, DIM), torch.float32, CPU, seed=seq) for seq, length in enumerate(CONTEXTS)]
    pages = torch.full((12, BLOCK // RATIO, DIM), torch.nan)
    compressed = [
        randn((length // RATIO, DIM), torch.float32, CPU, seed=seq + 9) for seq, length in enumerate(CONTEXTS)
    ]
    window = torch.full((5, WINDOW, DIM), torch.nan)
    query = randn((sum(QUERIES), HEADS, DIM), torch.float32, CPU, seed=20)
    positions = torch.cat([torch.arange(c - q, c) for q, c in zip(QUERIES, CONTEXTS, strict=True)])
    slots, counts = torch.full((len(query), 3), -1, dtype=torch.int32), torch.zeros(len(query), dtype=torch.int32)
    expected, row = torch.empty_like(query), 0
    for seq, (count, length) in enumerate(zip(QUERIES, CONTEXTS, strict=True)):
        for place in range(max(length - count - WINDOW, 0), length - count):
            window[rows[seq], place % WINDOW] = entries[seq][place]
        for number, entry in enumerate(compressed[seq]):
            pages[metadata.block_tables[seq, number // 4], number % 4] = entry
        for position in range(length - count, length):
            seen = list(range((position + 1) // RATIO))
            if kind == "chosen":
                seen = seen[position % 2 :: 2][:3]
                counts[row] = len(seen)
                for place, number in enumerate(seen):
                    slots[row, place] = metadata.block_tables[seq, number // 4] * 4 + number % 4
            far = compressed[seq][seen if kind != "window" else []]
            visible = torch.cat((entries[seq][max(position - WINDOW + 1, 0) : position + 1], far)).double()
            scores = query[row].double() @ visible.T * DIM**-0.5  # [heads, N]
            weights = scores.exp() / (scores.exp().sum(-1) + SINKS.double().exp())[:, None]
            expected[row] = (weights @ visible).float()
            row += 1
    turn_last(expected, positions, TABLE, back=True)
    new = torch.cat([each[c - q :] for each, q, c in zip(entries, QUERIES, CONTEXTS, strict=True)])
    far_entries = (
        None if kind == "window" else Entries(pages, RATIO, Chosen(slots, counts) if kind == "chosen" else None)
    )
    found = attend(query, new, window, rows, far_entries, SINKS, positions, TABLE, metadata, WINDOW)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for seq, length in enumerate(CONTEXTS):  # the ring goes on
        last = torch.arange(max(length - WINDOW, 0), length)
        torch.testing.assert_close(window[rows[seq], last % WINDOW], entries[seq][last], atol=0, rtol=0)
    assert window[3].isnan().all()


def test_turning_back_undoes_turning():
    x = randn((5, HEADS, DIM), torch.float32, CPU, seed=1)
    turned, positions = x.clone(), torch.tensor([0, 1, 17, 64, 127])
    turn_last(turned, positions, TABLE)
    assert torch.equal(turned[..., :-ROPE], x[..., :-ROPE])
    assert (turned[1:, :, -ROPE:] - x[1:, :, -ROPE:]).abs().max() > 0.1
    turn_last(turned, positions, TABLE, back=True)
    torch.testing.assert_close(turned, x, atol=1e-6, rtol=0)


def test_queries_have_no_weight_and_entries_have_one():
    query, entry = randn((4, HEADS, DIM), torch.float32, CPU, seed=1), randn((4, DIM), torch.float32, CPU, seed=2)
    weight, zero = torch.full((DIM,), 3.0), torch.zeros(4, dtype=torch.int64)
    queries, entries = window_entries(query, entry, zero, TABLE, weight, 1e-6)
    torch.testing.assert_close(queries.square().mean(-1), torch.ones(4, HEADS), atol=1e-4, rtol=0)
    torch.testing.assert_close(entries.square().mean(-1), torch.full((4,), 9.0), atol=1e-3, rtol=0)


def test_a_choice_among_keys_of_several_tokens():
    """Each query sees the keys that end no later than itself; the best of them, or all."""
    metadata, top_k = geometry(), 4
    pages = randn((12, BLOCK // RATIO, DIM), torch.float32, CPU, seed=5)
    query = randn((sum(QUERIES), 6, DIM), torch.float32, CPU, seed=6)
    positions = torch.cat([torch.arange(c - q, c) for q, c in zip(QUERIES, CONTEXTS, strict=True)])
    raw = randn((len(query), 6), torch.float32, CPU, seed=7)
    turned, weights = index_query(query.clone(), raw, positions, TABLE, pages)
    torch.testing.assert_close(weights, raw * (6 * DIM) ** -0.5)
    found = indexer(turned, weights, pages, metadata, top_k, RATIO)
    row = 0
    for seq, (count, length) in enumerate(zip(QUERIES, CONTEXTS, strict=True)):
        for position in range(length - count, length):
            number = torch.arange((position + 1) // RATIO)
            slots = metadata.block_tables[seq, number // 4] * 4 + number % 4
            keys = pages.flatten(0, 1)[slots]
            scores = (weights[row, :, None] * (turned[row] @ keys.T).relu()).sum(0)
            best = slots[scores.topk(min(top_k, len(number))).indices.sort().values]
            assert found.counts[row] == len(best)
            assert found.slots[row].tolist() == [*best.tolist(), *[-1] * (top_k - len(best))]
            row += 1


def test_groups_see_their_own_inputs_alone():
    x, weight = randn((5, 12), torch.float32, CPU, seed=1), randn((6, 4), torch.float32, CPU, seed=2)
    expected = torch.cat([x[:, 4 * g : 4 * g + 4] @ weight[2 * g : 2 * g + 2].T for g in range(3)], dim=1)
    torch.testing.assert_close(grouped_linear(x, weight), expected)
