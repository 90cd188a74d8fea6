"""Which CUDA graphs there are to be."""

from __future__ import annotations

import pytest

from appliance.checkpoint.memory.graph_shapes import (
    MOST_SEQUENCES,
    batch_sizes,
    context_sizes,
    graph_shapes,
    most_rows,
)


@pytest.mark.parametrize("most", [1, 2, 3, 8, 9, 64, 100, 256, 512, 1000])
def test_a_batch_is_padded_by_seven_or_a_quarter_at_most(most):
    sizes = batch_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(most, MOST_SEQUENCES)
    for count in range(9, sizes[-1] + 1):
        assert min(size for size in sizes if size >= count) <= max(count * 5 / 4, count + 7)


@pytest.mark.parametrize("longest", [1, 512, 1024, 1025, 40960, 131072])
def test_the_longest_context_has_one(longest):
    sizes = context_sizes(longest)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == longest


def test_the_largest_batch_of_the_shortest_context_comes_first():
    shapes = graph_shapes(max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=4096)
    assert shapes[0] == (64, 1024)
    assert len(shapes) == len(set(shapes)) == len(batch_sizes(64)) * len(context_sizes(4096))


@pytest.mark.parametrize(("seqs", "drafts", "rows"), [(1, 4, 5), (8, 0, 8), (8, 4, 40), (16, 4, 64), (256, 4, 256)])
def test_few_sequences_have_room_for_all_their_drafts(seqs, drafts, rows):
    assert most_rows(seqs, drafts) == rows


def test_no_batch_is_larger_than_a_step():
    shapes = graph_shapes(max_num_seqs=256, max_num_batched_tokens=16, max_model_len=512)
    assert shapes[0] == (16, 512)
