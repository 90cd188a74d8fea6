"""Which CUDA graphs there are to be."""

from __future__ import annotations

import pytest

from appliance.checkpoint.memory.graphs import MOST_SEQUENCES, context_ladder, graph_shapes, sequence_ladder


@pytest.mark.parametrize("most", [1, 2, 3, 8, 9, 64, 100, 256, 512, 1000])
def test_every_batch_has_a_size_that_pads_it_by_a_quarter_at_most(most):
    sizes = sequence_ladder(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(most, MOST_SEQUENCES)
    for count in range(9, sizes[-1] + 1):
        assert min(size for size in sizes if size >= count) <= max(count * 5 / 4, count + 7)


@pytest.mark.parametrize("longest", [1, 512, 1024, 1025, 40960, 131072])
def test_the_longest_context_has_one(longest):
    sizes = context_ladder(longest)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == longest


def test_the_largest_batch_of_the_shortest_context_comes_first():
    shapes = list(graph_shapes(64, 4096))
    assert shapes[0] == (64, 1024)
    assert len(shapes) == len(set(shapes)) == len(sequence_ladder(64)) * len(context_ladder(4096))
