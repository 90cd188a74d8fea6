"""Latent attention: Triton, interpreted, against plain torch; and what it works in."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error
from kernels.catalogue import MLA_ATTENTION
from kernels.context import Context
from kernels.launch import launching_for, listening
from kernels.mla_attention import SHAPES, LatentShape, absorbs, part_bytes, reference, triton, variants, workspace
from kernels.mla_attention.cases import Batch, Shape, batch, cases
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.paged_attention.workspace import Step
from kernels.variants import Variant
from tests.kernels.flags import every_form
from tests.kernels.peak import Peak
from tests.kernels.recorded import launched_by_cases
from tests.kernels.test_workspace import geometry

CPU, META = torch.device("cpu"), torch.device("meta")
DEEPSEEK = SHAPES[0]
with every_form():
    CASES = [(arch, case) for arch in (90, 120) for case in cases(arch) if "bfloat16" in case.name]


@pytest.mark.parametrize(("arch", "case"), CASES, ids=[f"{arch} {case.name}" for arch, case in CASES])
def test_triton_agrees_with_the_reference(arch, case):
    with launching_for(arch):
        (result,) = case.run(triton.mla_attention, CPU)
    (expected,) = case.run(reference.mla_attention, CPU)
    assert error(result, expected) <= case.tolerance


def test_a_batch_of_everything():
    """Decodes, chunks of a few tokens and of many, whole prompts; pages of 32."""
    shape = Shape((1, 1, 3, 180, 2, 175, 60), (700, 33, 40, 197, 600, 175, 60), 6, DEEPSEEK, block_size=32)
    made = batch(shape, torch.float16, CPU)
    heard: list[Variant] = []
    with listening(heard.append):
        found = triton.mla_attention(*made, 0.1)
    assert error(found, reference.mla_attention(*made, 0.1)) <= 2e-3
    launched = [variant.kernel.rpartition(":")[2] for variant in heard]
    assert launched == [
        "decode_kernel", "merge_kernel", "decode_kernel", "gather_kernel", "prefill_kernel", "decode_kernel",
        "merge_kernel", "gather_kernel", "prefill_kernel", "decode_kernel",
    ]  # fmt: skip


@pytest.mark.parametrize("heads_a_time", [1, 2, 3])
def test_heads_are_expanded_in_groups(heads_a_time, monkeypatch):
    """As many as the memory limit has room for."""
    shape = Shape((180, 175), (200, 175), 3, DEEPSEEK)
    made = batch(shape, torch.float16, CPU)
    monkeypatch.setattr("kernels.mla_attention.EXPANDED_BYTES", heads_a_time * sum(shape.contexts) * 256 * 2 + 1)
    heard: list[Variant] = []
    with listening(heard.append):
        found = triton.mla_attention(*made, 0.1)
    assert error(found, reference.mla_attention(*made, 0.1)) <= 2e-3
    assert sum("prefill_kernel" in variant.kernel for variant in heard) == -(-3 // heads_a_time)


def only(made: Batch, seq: int) -> Batch:
    """One decode of a batch, by itself."""
    before = made.metadata
    metadata = AttentionMetadata(
        query_lens=[1], context_lens=[before.context_lens[seq]], num_decodes=1,
        query_start_loc=torch.tensor([0, 1], dtype=torch.int32), seq_lens=before.seq_lens[seq : seq + 1].clone(),
        block_tables=before.block_tables[seq : seq + 1].clone(), slot_mapping=before.slot_mapping[seq : seq + 1],
    )  # fmt: skip
    return Batch(made.query[seq : seq + 1], made.cache, made.kv_b, metadata)


def test_a_decode_does_not_depend_on_its_neighbours(monkeypatch):
    """To the bit: by itself, beside others, and where parts or queries do not fit into the memory limits together."""
    monkeypatch.setattr(torch, "bmm", one_by_one)
    made = batch(Shape((1,) * 4, (20, 1100, 600, 5), 4, DEEPSEEK), torch.float16, CPU)
    together = triton.mla_attention(*made, 0.125)
    for seq in range(4):
        assert torch.equal(triton.mla_attention(*only(made, seq), 0.125)[0], together[seq])
    monkeypatch.setattr(triton, "SCRATCH_BYTES", 2 * part_bytes(4, DEEPSEEK.rank))
    assert torch.equal(triton.mla_attention(*made, 0.125), together)
    monkeypatch.setattr(triton, "ABSORBED_TOKENS", 3)
    assert torch.equal(triton.mla_attention(*made, 0.125), together)


def one_by_one(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """A CPU's product of matrices adds up in an order that depends on their sizes."""
    rows = [torch.matmul(row.unsqueeze(1), right) for row in left.unbind(1)]
    result = torch.cat(rows, dim=1)
    return result if out is None else out.copy_(result)


@pytest.mark.parametrize("query_lens", [(1, 40), (1, 200)], ids=["absorbed", "expanded"])
def test_what_lies_behind_a_context_has_no_part_in_the_result(query_lens):
    """Not even NaN, in the rest of a sequence's last block or in blocks of others: `batch` puts it there."""
    made = batch(Shape(query_lens, (300, 270), 2, DEEPSEEK), torch.float16, CPU)
    assert absorbs(DEEPSEEK, query_lens[1]) == (query_lens[1] == 40)
    expected = triton.mla_attention(*made, 0.125)
    assert expected.isfinite().all()
    assert made.cache.isnan().any()
    made.cache.nan_to_num_(1e4)
    assert torch.equal(triton.mla_attention(*made, 0.125), expected)


def test_a_chunk_is_absorbed_where_that_takes_fewer_operations():
    shape = DEEPSEEK
    for length in (1, 170, 171, 500):
        expanded = shape.rank * (shape.nope + shape.value) + length * (shape.nope + shape.rope + shape.value)
        absorbed = length * (2 * shape.rank + shape.rope)
        assert absorbs(shape, length) == (absorbed <= expanded)


@pytest.mark.parametrize("model", [None, 1, 24, 128])
@pytest.mark.parametrize("arch", [80, 100, 120])
def test_the_cases_launch_all_that_is_declared_and_nothing_else(arch, model):
    """`model` is its number of heads."""
    with every_form():
        for shape in [None] if model is None else [context(shape, model, arch) for shape in SHAPES]:
            assert launched_by_cases("mla_attention", arch, shape) == set(variants.variants(arch, shape))


@pytest.mark.parametrize("arch", [80, 86, 89, 90, 100, 103, 120, 121])
@pytest.mark.parametrize("heads", [1, 4, 8, 16, 24, 32, 64, 128])
def test_a_model_launches_what_was_declared_for_it(arch, heads, monkeypatch):
    """Of decodes, chunks and prompts; and all of it is in the set of its architecture."""
    found: list[Variant] = []
    monkeypatch.setattr(triton, "launch", lambda kernel, variant, *_: found.append(variant))
    monkeypatch.setattr(triton, "interpreted", lambda: False)
    for shape in SHAPES:
        found.clear()
        model = context(shape, heads, arch)
        with launching_for(arch), every_form():
            for block_size in (8, 16):
                made = geometric(shape, heads, (1, 1, 5, 900), (9000, 30, 40, 900), block_size)
                triton.mla_attention(*made, 0.1)
            declared = set(variants.variants(arch))
        assert set(found) == set(variants.variants(arch, model)) <= declared


def test_every_backend_of_the_engine_says_what_it_works_in():
    assert set(workspace._BY_BACKEND) == {backend.name for backend in MLA_ATTENTION.of("native")}


@pytest.mark.parametrize("backend", workspace._BY_BACKEND)
def test_a_workspace_never_falls_as_contexts_grow(backend):
    """The longest context that fits is searched for by halves."""
    lengths = (1, 100, 1024, 1025, 4096, 32768, 32769, 131072, 1 << 20)
    found = [workspace.workspace_bytes(backend, context(DEEPSEEK, 128, 90), Step(2048, 256, n)) for n in lengths]
    assert found == sorted(found)


BATCHES = pytest.mark.parametrize(
    ("query_lens", "context_lens"),
    [((1,) * 256, (131072,) * 256), ((1,) * 255 + (1793,), (300,) * 255 + (131072,)), ((512,) * 4, (8192,) * 4),
     ((100,) * 20, (9000,) * 20)],
    ids=["decodes", "mixed", "prefills", "short chunks"],
)  # fmt: skip


@BATCHES
@pytest.mark.parametrize("heads", [16, 128])
def test_triton_stays_within_its_workspace(query_lens, context_lens, heads, monkeypatch):
    monkeypatch.setattr(triton, "launch", lambda *_: None)
    monkeypatch.setattr(triton, "interpreted", lambda: False)
    arguments = geometric(DEEPSEEK, heads, query_lens, context_lens)
    with launching_for(90), Peak() as peak:
        out = triton.mla_attention(*arguments, 0.1)
    step = Step(sum(query_lens), len(query_lens), max(context_lens))
    planned = workspace.workspace_bytes("triton", context(DEEPSEEK, heads, 90), step)
    assert peak.bytes - out.nbytes <= planned + 64 * len(query_lens)  # and a few numbers of each sequence


@pytest.mark.parametrize(
    ("query_lens", "context_lens"),
    [((1,) * 40, (2000,) * 40), ((700,), (3000,)), ((1, 1, 600), (30, 2500, 600))],
    ids=["decodes", "chunk", "mixed"],
)
def test_torch_stays_within_its_workspace(query_lens, context_lens):
    shape = LatentShape(64, 32, 16, 32)
    made = batch(Shape(query_lens, context_lens, 8, shape), torch.bfloat16, CPU)
    with Peak() as peak:
        out = reference.mla_attention(*made, 0.1)
    step = Step(sum(query_lens), len(query_lens), max(context_lens))
    assert peak.bytes - out.nbytes <= workspace.workspace_bytes("torch", context(shape, 8, 90), step)


def context(shape: LatentShape, heads: int, arch: int) -> Context:
    return Context(
        "cuda", divmod(arch, 10), "bfloat16", head_dim=shape.rank + shape.rope, num_heads=heads, latent_attention=True,
        latent_rank=shape.rank, latent_nope_dim=shape.nope, latent_rope_dim=shape.rope, latent_value_dim=shape.value,
    )  # fmt: skip


def geometric(
    shape: LatentShape,
    heads: int,
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    block_size: int = 16,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, AttentionMetadata]:
    """What the face needs to choose and to allocate."""

    def numbers(*size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.bfloat16, device=META)

    query = numbers(sum(query_lens), heads, shape.nope + shape.rope)
    cache = numbers(1 << 16, block_size, shape.rank + shape.rope)
    kv_b = numbers(heads, shape.nope + shape.value, shape.rank)
    return query, cache, kv_b, geometry(query_lens, context_lens)
