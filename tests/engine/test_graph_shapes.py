"""Which CUDA graphs there are to be."""

from __future__ import annotations

import pytest

from appliance.checkpoint.memory.graph_shapes import (
    MOST_SEQUENCES,
    GraphShape,
    batch_sizes,
    context_sizes,
    graph_shapes,
    most_rows,
)
from appliance.engine.graphs import GraphChoice, StepSize


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
    assert shapes[0] == GraphShape(64, 1024)
    assert len(shapes) == len(set(shapes)) == len(batch_sizes(64)) * len(context_sizes(4096))


def test_a_context_beyond_the_windows_of_all_layers_has_one_more():
    """As long as a request may be; it is no longer to decode than its window."""
    assert context_sizes(131072, 4096) == [1024, 131072]
    assert context_sizes(2048, 4096) == context_sizes(2048)
    shapes = graph_shapes(
        max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=131072, window=4096, prefills=True
    )  # fmt: skip
    assert {shape.context for shape in shapes if shape.prefill_tokens} == {1024, 131072}
    assert shapes[0].context == 1024


@pytest.mark.parametrize(("seqs", "drafts", "rows"), [(1, 4, 5), (8, 0, 8), (8, 4, 40), (16, 4, 64), (256, 4, 256)])
def test_few_sequences_have_room_for_all_their_drafts(seqs, drafts, rows):
    assert most_rows(seqs, drafts) == rows


def test_no_batch_is_larger_than_a_step():
    shapes = graph_shapes(max_num_seqs=256, max_num_batched_tokens=16, max_model_len=512)
    assert shapes[0] == GraphShape(16, 512)


@pytest.mark.parametrize("seqs", [1, 16, 100, 256, 512])
@pytest.mark.parametrize("batched", [1, 40, 512, 8192])
@pytest.mark.parametrize("longest", [100, 1024, 131072])
def test_steps_with_prompts_have_a_bounded_number(seqs, batched, longest):
    limits = {"max_num_seqs": seqs, "max_num_batched_tokens": batched, "max_model_len": longest}
    decodes, shapes = graph_shapes(**limits), graph_shapes(**limits, prefills=True)
    mixed = [shape for shape in shapes if shape.prefill_tokens]
    assert [shape for shape in shapes if not shape.prefill_tokens] == decodes
    assert len(set(shapes)) == len(shapes) <= len(decodes) + 108
    # Tokens of padding are one sequence, whose context the block table must hold.
    assert all(0 < shape.prefill_tokens <= min(batched, shape.context) for shape in mixed)
    assert max(shape.sequences for shape in mixed) == min(seqs, batched, 256)


@pytest.mark.parametrize("tokens", [1, 32, 100, 129, 500, 1024])
@pytest.mark.parametrize("decodes", [0, 1, 64, 200])
def test_a_prompt_is_padded_by_half_at_most_and_decodes_to_few_sizes(tokens, decodes):
    """Beyond the smallest, where a step takes as long as its weights do."""
    shapes = graph_shapes(max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=4096, prefills=True)
    choice = GraphChoice(shapes)
    for shape in shapes:
        choice.add(shape)
    found = choice.choose(StepSize(decodes, 1024, tokens, 1))
    assert found is not None
    assert found.context == 1024
    assert tokens <= found.prefill_tokens <= max(tokens * 3 / 2, 128)
    assert decodes <= found.sequences <= max(decodes * 4, 16)
    assert (found.sequences == 0) == (decodes == 0)


def test_a_prompt_takes_a_larger_graph_only_if_it_is_not_much_larger():
    near, far = GraphShape(0, 1024, 64), GraphShape(16, 1024, 128)
    choice = GraphChoice((GraphShape(0, 1024, 32), near, far))
    choice.add(far)
    assert choice.choose(StepSize(0, 20, 20, 1)) is None
    choice.add(near)
    assert choice.choose(StepSize(0, 20, 20, 1)) == near


def test_where_no_memory_was_left_a_step_with_prompts_is_too_large_instead_of_impossible():
    choice = GraphChoice((GraphShape(16, 1024, 64), GraphShape(16, 1024)))
    choice.add(GraphShape(16, 1024))
    choice.drop(GraphShape(16, 1024, 64))
    size = StepSize(1, 20, 20, 1)
    assert choice.holds_prefills
    assert choice.choose(size) is None
    assert not choice.has_room(size)
    assert not GraphChoice((GraphShape(16, 1024),)).holds_prefills
