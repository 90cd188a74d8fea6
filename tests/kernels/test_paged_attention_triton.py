"""Paged attention: Triton, interpreted, against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error
from kernels.launch import launching_for
from kernels.paged_attention import SPLIT, part_bytes, reference, triton, variants
from kernels.paged_attention.cases import Shape, batch, cases
from tests.kernels.flags import every_form
from tests.kernels.padded import padded

CPU = torch.device("cpu")


def chosen(arch: int, *words: str):
    """The interpreter is slow: all of the smallest head, and little of the others, which are left to a GPU."""
    with every_form():
        return [case for case in cases(arch) if all(word in case.name for word in words)]


CASES = [case for case in chosen(90, "head_dim=64,", "bfloat16") if "soft cap" not in case.name]
CASES += chosen(90, "head_dim=96,", "float16", "soft cap", "prefill_kernel", "sinks=True")
for larger in ("head_dim=128,", "head_dim=256,"):
    CASES += chosen(90, larger, "float16", "soft cap", "decode_kernel", "kv_heads=3")
    CASES += chosen(90, larger, "bfloat16", "soft cap", "prefill_kernel", "queries=(3, 37)")[:1]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_triton_agrees_with_the_reference(case):
    for result, expected in zip(
        case.run(triton.paged_attention, CPU), case.run(reference.paged_attention, CPU), strict=True
    ):
        assert error(result, expected) <= case.tolerance


@pytest.mark.parametrize(
    "case", chosen(80, "head_dim=64,", "float16", "fp8", "soft cap", "sinks=True"), ids=lambda case: case.name
)
def test_an_fp8_cache_is_read_by_integers_where_there_is_no_instruction_for_it(case):
    with launching_for(80):
        (result,) = case.run(triton.paged_attention, CPU)
    (expected,) = case.run(reference.paged_attention, CPU)
    assert error(result, expected) <= case.tolerance


@pytest.mark.parametrize("gathered", [False, True])
def test_what_lies_in_the_cache_before_a_window_has_no_part_in_the_result(gathered, monkeypatch):
    """Not even NaN, as in pages that were given away and scrubbed by nobody: a weight of zero does not hide it."""
    monkeypatch.setattr(triton, "_worth_gathering", lambda *_: gathered)
    shape = Shape((1, 40), (300, 170), heads=2, kv_heads=1, head_dim=64, sliding_window=33)
    query, keys, values, metadata = batch(shape, torch.float16, torch.float16, CPU)
    arguments = (query, keys, values, metadata, 0.125, shape.sliding_window)
    with launching_for(90):
        expected = triton.paged_attention(*arguments)
        assert expected.isfinite().all()
        for seq, first_seen in enumerate((300 - 33, 130 - 32)):
            for cache in (keys, values):
                whole = first_seen // shape.block_size
                cache[metadata.block_tables[seq, :whole].long()] = float("nan")
                cache[metadata.block_tables[seq, whole].long(), : first_seen % shape.block_size] = float("nan")
        assert torch.equal(triton.paged_attention(*arguments), expected)


def test_a_decode_does_not_depend_on_how_many_sequences_one_launch_takes(monkeypatch):
    """To the bit: sequences whose parts do not fit into the scratch memory together get launches of their own."""
    shape = Shape((1,) * 4, (20, 700, 300, 5), heads=4, kv_heads=2, head_dim=64)
    made = batch(shape, torch.float16, torch.float16, CPU)
    together = triton.paged_attention(*made, 0.125)
    monkeypatch.setattr(triton, "SCRATCH_BYTES", 2 * part_bytes(4, 64))
    assert torch.equal(triton.paged_attention(*made, 0.125), together)


@pytest.mark.parametrize("decodes", [(), (300, 18)], ids=["prefills", "mixed"])
@pytest.mark.parametrize(("prefills", "tokens"), [(2, 61), (4, 96)], ids=["just so many", "more"])
def test_a_padded_batch_gives_the_same_to_the_bit(decodes, prefills, tokens, monkeypatch):
    """Whatever the host says of its lengths, in a captured step. The longest context takes two parts."""
    monkeypatch.setattr(triton, "_worth_gathering", lambda *_: False)
    shape = Shape((*[1 for _ in decodes], 40, 21), (*decodes, 170, 21), heads=4, kv_heads=2, head_dim=64)
    query, keys, values, metadata = batch(shape, torch.float16, torch.float16, CPU)
    keys[0], values[0] = 0.0, 0.0  # which padding reads
    expected = triton.paged_attention(query, keys, values, metadata, 0.125)
    wide = padded(metadata, 2 * len(decodes), prefills, tokens)
    out = triton.paged_attention(wide.tokens(query), keys, values, wide.metadata, 0.125)
    assert torch.equal(out[wide.rows], expected)
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("contexts", "room", "runs"),
    [
        ([], 8, []),
        ([1, 256, 257], 8, [(0, 3, 2)]),
        ([1, 1, 2048, 1, 1], 8, [(0, 2, 1), (2, 1, 8), (3, 2, 1)]),
        ([9000, 1], 8, [(0, 1, 36), (1, 1, 1)]),
    ],
)
def test_neighbours_share_a_launch_while_their_parts_have_room(contexts, room, runs):
    """A sequence that has more parts than there is room for is decoded by itself."""
    assert list(triton.decode_runs(contexts, SPLIT, room)) == runs


@pytest.mark.parametrize("arch", [80, 86, 89, 90, 100, 103, 120, 121])
def test_each_architecture_has_a_tile_for_every_head_size(arch):
    assert {dict(v.constants).get("HEAD_DIM") for v in variants.variants(arch)} >= set(variants.HEAD_DIMS)
    names = [variant.name for variant in variants.variants(arch)]
    assert len(names) == len(set(names))
