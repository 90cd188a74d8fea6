"""Latent attention over chosen tokens: by its definition, in torch, and in Triton."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error
from kernels.indexer.chosen import Chosen
from kernels.launch import launching_for
from kernels.mla_attention import SHAPES, LatentShape, part_bytes, split
from kernels.mla_attention import reference as dense
from kernels.mla_attention import triton as dense_triton
from kernels.mla_attention.cases import Shape
from kernels.mla_attention.cases import batch as latents
from kernels.sparse_mla import reference, triton, variants
from kernels.sparse_mla.cases import Batch, batch, cases
from tests.kernels.flags import every_form
from tests.kernels.recorded import launched_by_cases
from tests.kernels.test_mla_attention import by_definition
from tests.kernels.test_mla_attention_triton import context, one_by_one

CPU = torch.device("cpu")
SMALL, DEEPSEEK = LatentShape(16, 8, 4, 12), SHAPES[0]
with every_form():
    CASES = [(arch, case) for arch in (90, 120) for case in cases(arch) if "bfloat16" in case.name]


@pytest.mark.parametrize(("arch", "case"), CASES, ids=[f"{arch} {case.name}" for arch, case in CASES])
def test_triton_agrees_with_the_reference(arch, case):
    with launching_for(arch):
        (result,) = case.run(triton.sparse_mla, CPU)
    (expected,) = case.run(reference.sparse_mla, CPU)
    assert error(result, expected) <= case.tolerance


@pytest.mark.parametrize("room", [1, 1 << 25])
def test_the_reference_agrees_with_the_definition(room, monkeypatch):
    """Over the chosen tokens as if there were no others, whatever the slots of others hold."""
    monkeypatch.setattr("kernels.sparse_mla.GATHERED_BYTES", room)
    made = batch((1, 40, 17, 90), 3, SMALL, 20, torch.float32, CPU)
    assert made.cache.isnan().any()
    out = reference.sparse_mla(*made, 0.3, 4)
    for row, count in enumerate(made.chosen.counts.tolist()):
        entries = made.cache.flatten(0, 1)[made.chosen.slots[row, :count].long()]
        torch.testing.assert_close(
            out[row : row + 1], by_definition(made.query[row : row + 1], entries, made.kv_b, 0.3)
        )


@pytest.mark.parametrize("contexts", [(30, 7), (700, 33)], ids=str)
def test_all_tokens_chosen_is_attention_over_all(contexts):
    """In Triton to the bit, for the parts are the same."""
    made = latents(Shape((1, 1), contexts, 3, DEEPSEEK), torch.float16, CPU)
    slots = torch.full((2, 1000), -1, dtype=torch.int32)
    for row, length in enumerate(contexts):
        token = torch.arange(length)
        slots[row, :length] = made.metadata.block_tables[row, token // 16] * 16 + (token % 16).int()
    chosen = Chosen(slots, torch.tensor(contexts, dtype=torch.int32))
    everything = (made.query, made.cache, made.kv_b)
    found = triton.sparse_mla(*everything, chosen, 0.1, 2)
    assert torch.equal(found, dense_triton.mla_attention(*made, 0.1))
    assert error(reference.sparse_mla(*everything, chosen, 0.1, 2), dense.mla_attention(*made, 0.1)) <= 2e-3


def only(made: Batch, row: int) -> Batch:
    rows = slice(row, row + 1)
    return made._replace(query=made.query[rows], chosen=Chosen(*(part[rows].clone() for part in made.chosen)))


def test_a_decode_does_not_depend_on_its_neighbours(monkeypatch):
    """To the bit: by itself, beside others, and where parts or queries do not fit into the memory limits together."""
    monkeypatch.setattr(torch, "bmm", one_by_one)
    made = batch((20, 1100, 600, 5), 4, DEEPSEEK, split(4) + 100, torch.float16, CPU)
    together = triton.sparse_mla(*made, 0.125, 4)
    for row in range(4):
        assert torch.equal(triton.sparse_mla(*only(made, row), 0.125, 1)[0], together[row])
    monkeypatch.setattr(triton, "SCRATCH_BYTES", 2 * part_bytes(4, DEEPSEEK.rank))
    assert torch.equal(triton.sparse_mla(*made, 0.125, 4), together)
    monkeypatch.setattr(triton, "ABSORBED_TOKENS", 3)
    assert torch.equal(triton.sparse_mla(*made, 0.125, 4), together)


@pytest.mark.parametrize("model", [None, 1, 24, 128])
@pytest.mark.parametrize("arch", [80, 100, 120])
def test_the_cases_launch_all_that_is_declared_and_nothing_else(arch, model):
    """`model` is its number of heads."""
    with every_form():
        for shape in [None] if model is None else [context(shape, model, arch) for shape in SHAPES]:
            launched = launched_by_cases("sparse_mla", arch, shape)
            assert launched == set(variants.variants(arch, shape)) <= set(variants.variants(arch))
