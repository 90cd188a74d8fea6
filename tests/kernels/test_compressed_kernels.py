"""DeepSeek V4's own ops in Triton: against torch, and what they may launch is declared."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch

from kernels.cases import error
from kernels.catalogue import OPS as CATALOGUE
from kernels.catalogue import graphs_hold_prefills
from kernels.compressed_attention import part_bytes
from kernels.compressed_attention import reference as attention
from kernels.compressed_attention import triton as attention_triton
from kernels.compressed_attention.cases import Shape, batch
from kernels.compressed_attention.triton_kernels import attend_kernel
from kernels.compressed_attention.variants import WINDOW, hopper_decode, keep, merge
from kernels.context import Context
from kernels.launch import launch, launching_for
from kernels.packed_entries.reference import read_entries
from kernels.packed_entries.variants import DIM, ROPE
from kernels.selection import chosen_names, explain
from tests.kernels.alone import only
from tests.kernels.recorded import launched_by_cases, recorded

CPU = torch.device("cpu")
OPS = ("compressed_attention", "compressor", "index_query", "window_entries")
FLASH = Context(
    "cuda", (9, 0), "bfloat16", head_dim=512, num_heads=64, rotary_dim=64, compressed_attention=True, window=128,
    index_heads=64, index_head_dim=128, index_top_k=512, index_ratio=4, least_ratio=128,
)  # fmt: skip


def _cases():
    for op in OPS:
        for arch in (80, 90):  # integers as codes, and numbers
            for case in importlib.import_module(f"kernels.{op}.cases").cases(arch):
                if "bfloat16" in case.name:
                    yield pytest.param(op, arch, case, id=f"{op} {arch} {case.name}")


@pytest.mark.parametrize(("op", "arch", "case"), list(_cases()))
def test_triton_agrees_with_the_reference(op, arch, case):
    """A prefill and decodes of all kinds, beside memory full of NaN."""
    backend, reference = (importlib.import_module(f"kernels.{op}.{name}") for name in ("triton", "reference"))
    with launching_for(arch):
        found = case.run(getattr(backend, op), CPU)
    for result, expected in zip(found, case.run(getattr(reference, op), CPU), strict=True):
        assert error(result, expected) <= case.tolerance


@pytest.mark.parametrize("model", [None, FLASH], ids=["any model", "V4 Flash"])
@pytest.mark.parametrize("arch", [80, 90, 120])
@pytest.mark.parametrize("op", OPS)
def test_the_cases_launch_all_that_is_declared_and_nothing_else(op, arch, model, monkeypatch):
    monkeypatch.setattr(attention_triton, "interpreted", lambda: False)
    declared = importlib.import_module(f"kernels.{op}.variants").variants
    assert launched_by_cases(op, arch, model) == set(declared(arch, model)) <= set(declared(arch))


def test_no_graph_holds_prompts_whose_padding_would_become_entries():
    """Padding has no block of its own, so that its entries would lie in block 0."""
    model = replace(FLASH, index_heads=0, index_top_k=0, index_ratio=1, libraries={"triton": "3"})
    names = chosen_names(explain(CATALOGUE, model))
    assert names["compressor"] == names["compressed_attention"] == "triton"
    assert not graphs_hold_prefills(names)


@pytest.mark.parametrize(("rank", "backend"), [(1024, "triton"), (1004, "torch")])
def test_entries_behind_latents_of_an_odd_width_are_torchs(rank, backend):
    model = replace(FLASH, latent_query_rank=rank, libraries={"triton": "3"})
    assert chosen_names(explain(CATALOGUE, model))["window_entries"] == backend


def test_launches_are_of_the_declared_types():
    made = batch(Shape((1, 1, 5), (9, 700, 140), 3, 4, 40), torch.bfloat16, CPU)
    with recorded([attention_triton]) as launched:
        attention_triton.compressed_attention(*made, WINDOW)
    assert len(launched) == 4  # of decodes and prefills: entries are kept, and attended to; a part is alone


def test_decodes_of_many_heads_on_sm_90_are_launched_as_declared(monkeypatch):
    """Their parts are joined, one alone too."""
    monkeypatch.setattr(attention_triton, "interpreted", lambda: False)
    for top_k, chosen in ((40, True), (0, False)):
        made = batch(Shape((1, 1), (9, 700), 64, 4, top_k), torch.bfloat16, CPU)
        with launching_for(90), recorded([attention_triton]) as launched:
            attention_triton.compressed_attention(*made, WINDOW)
        assert launched == {keep(90, "bfloat16", ring=True), hopper_decode("bfloat16", chosen), merge("bfloat16")}


def test_a_long_chunk_leaves_its_last_entries_in_the_ring(monkeypatch):
    """Each in a place of its own, though the chunk is longer than the ring."""
    made, other = (batch(Shape((133,), (150,), 2), torch.float16, CPU) for _ in range(2))

    def keep_alone(kernel, *rest):
        if kernel is not attend_kernel:
            launch(kernel, *rest)

    monkeypatch.setattr(attention_triton, "launch", keep_alone)
    attention_triton.compressed_attention(*made, WINDOW)
    attention.compressed_attention(*other, WINDOW)
    slots = made.rows[0] * WINDOW + torch.arange(WINDOW)
    ring, expected = (read_entries(each.window, slots, DIM, ROPE, torch.float32) for each in (made, other))
    assert torch.equal(ring, expected)


def test_a_decode_does_not_depend_on_its_neighbours(monkeypatch):
    """To the bit: by itself, beside others, and where parts do not fit into the memory limit together."""
    made = batch(Shape((1, 1, 1), (30, 1400, 700), 4, 4, 330), torch.float16, CPU)
    together = attention_triton.compressed_attention(*made, WINDOW)
    for row in range(3):
        assert torch.equal(attention_triton.compressed_attention(*only(made, row), WINDOW)[0], together[row])
    monkeypatch.setattr(attention_triton, "SCRATCH_BYTES", 2 * part_bytes(4, DIM))
    assert torch.equal(attention_triton.compressed_attention(*made, WINDOW), together)
