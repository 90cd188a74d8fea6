"""An indexer's scores and choice: by their definition, in torch, and in Triton."""

from __future__ import annotations

import pytest
import torch

from kernels.context import Context
from kernels.index_cache.reference import pages, write_keys
from kernels.indexer import reference, triton, variants
from kernels.indexer.cases import Batch, Shape, batch, cases
from kernels.indexer.workspace import workspace_tensors
from kernels.launch import launching_for, listening
from kernels.paged_attention.metadata import AttentionMetadata
from kernels.paged_attention.workspace import Step
from kernels.variants import Variant
from tests.kernels.peak import Peak
from tests.kernels.recorded import launched_by_cases
from tests.kernels.test_workspace import geometry

CPU = torch.device("cpu")
FACES = {"torch": reference.indexer, "triton": triton.indexer}
MIXED = Shape((1, 1, 7, 5, 1), (40, 7, 30, 90, 50), 32, 25)
CASES = [(arch, case) for arch in (80, 90) for case in cases(arch)]


@pytest.mark.parametrize(("arch", "case"), CASES, ids=[f"{arch} {case.name}" for arch, case in CASES])
def test_triton_agrees_with_the_reference(arch, case):
    with launching_for(arch):
        found = case.run(triton.indexer, CPU)
    for result, expected in zip(found, case.run(reference.indexer, CPU), strict=True):
        assert torch.equal(result, expected)


def by_definition(made: Batch, top_k: int) -> list[list[int]]:
    """The places of each query's tokens in the cache, in the order of their positions."""
    keys, scales = pages(made.cache, made.query.shape[-1])
    metadata, found, row = made.metadata, [], 0
    for seq, (count, length) in enumerate(zip(metadata.query_lens, metadata.context_lens, strict=True)):
        size = keys.shape[1]
        own = [int(metadata.block_tables[seq, at // size]) * size + at % size for at in range(length)]
        entries = (keys.float() * scales).flatten(0, 1)[own].double()
        for last in range(length - count, length):
            products = (made.query[row].double() @ entries[: last + 1].T).clamp(min=0)
            scores = (made.weights[row].double() @ products).tolist()
            best = torch.argsort(-torch.tensor(scores), stable=True)[:top_k].tolist()
            found.append([own[at] for at in sorted(best)])
            row += 1
    return found


def as_lists(slots: torch.Tensor, counts: torch.Tensor) -> list[list[int]]:
    assert all((row[count:] == -1).all() for row, count in zip(slots, counts.tolist(), strict=True))
    return [row[:count].tolist() for row, count in zip(slots, counts.tolist(), strict=True)]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("top_k", [1, 25, 64, 200])
def test_the_largest_are_chosen_and_of_equal_ones_the_first(face, top_k):
    """Scores are sums of small whole numbers, so that many are equal. No more than there are, and -1 behind them."""
    made = batch(MIXED, CPU)
    assert as_lists(*FACES[face](*made, top_k)) == by_definition(made, top_k)


@pytest.mark.parametrize("face", FACES)
def test_queries_are_taken_in_groups_that_fit_into_memory(face, monkeypatch):
    made = batch(MIXED, CPU)
    expected = by_definition(made, 25)
    monkeypatch.setattr("kernels.indexer.SCORE_BYTES", 3 * 92 * 4)
    heard: list[Variant] = []
    with listening(heard.append):
        assert as_lists(*FACES[face](*made, 25)) == expected
    assert face == "torch" or len(heard) > 8


@pytest.mark.parametrize("face", FACES)
def test_scores_of_every_kind_are_in_order(face):
    """Negative, infinite, too small to be normal, and NaN, which is the largest: a damaged model is to be noticed."""
    scores = [-1.0, 0.0, torch.nan, -0.0, 3.5, -torch.inf, torch.inf, 1e-40, -2.0, 0.0]
    made = batch(Shape((1,), (10,), 32, 4), CPU)
    size, blocks = made.cache.shape[1] // 132, made.metadata.block_tables[0]
    own = [int(blocks[at // size]) * size + at % size for at in range(10)]
    # Each head multiplies the key of one token.
    made.query.copy_(torch.eye(32, 128))
    keys = torch.zeros(10, 128)
    for head, score in enumerate(scores):
        keys[head, head] = torch.nan if score != score else 2.0
        made.weights[0, head] = 0.0 if score != score else max(min(score / 2, 3e38), -3e38)
    write_keys(keys.to(torch.float8_e4m3fn), torch.ones(10, 1), made.cache, torch.tensor(own))
    for top_k, places in {2: [2, 6], 3: [2, 4, 6], 5: [1, 2, 4, 6, 7], 7: [1, 2, 3, 4, 6, 7, 9]}.items():
        with launching_for(80):  # the interpreter takes e4m3's NaN for a number
            chosen = FACES[face](*made, top_k).slots[0].tolist()
        assert [own.index(slot) for slot in chosen] == places


@pytest.mark.parametrize("face", FACES)
def test_lengths_on_the_host_are_bounds(face):
    """A CUDA graph knows no others; and a choice does not depend on its neighbours."""
    made = batch(Shape((1,) * 4, (40, 7, 90, 26), 32, 25), CPU)
    expected = as_lists(*FACES[face](*made, 25))
    for seq in range(4):
        before = made.metadata
        metadata = AttentionMetadata(
            [1], [before.context_lens[seq] if face == "torch" else 2000], 1, torch.tensor([0, 1], dtype=torch.int32),
            before.seq_lens[seq : seq + 1], before.block_tables[seq : seq + 1], before.slot_mapping[seq : seq + 1],
        )  # fmt: skip
        alone = FACES[face](made.query[seq : seq + 1], made.weights[seq : seq + 1], made.cache, metadata, 25)
        assert as_lists(*alone) == expected[seq : seq + 1]


def test_a_long_context_is_gone_through_in_pieces(monkeypatch):
    made = batch(Shape((1,), (9000,), 32, 2048), CPU)
    assert as_lists(*triton.indexer(*made, 2048)) == as_lists(*reference.indexer(*made, 2048))


@pytest.mark.parametrize("model", [None, 32, 64])
@pytest.mark.parametrize("arch", [80, 90])
def test_the_cases_launch_all_that_is_declared_and_nothing_else(arch, model):
    context = None if model is None else Context("cuda", divmod(arch, 10), "bfloat16", index_heads=model)
    launched = launched_by_cases("indexer", arch, context)
    assert launched == set(variants.variants(arch, context)) <= set(variants.variants(arch))


@pytest.mark.parametrize(
    ("query_lens", "context_lens"),
    [((1,) * 256, (131072,) * 256), ((1,) * 255 + (1793,), (300,) * 255 + (131072,)), ((2048,), (131072,))],
    ids=["decodes", "mixed", "prefill"],
)
def test_triton_stays_within_its_workspace(query_lens, context_lens, monkeypatch):
    """However long a prompt is: queries are taken in groups."""
    monkeypatch.setattr(triton, "launch", lambda *_: None)
    meta, tokens, top_k = torch.device("meta"), sum(query_lens), 2048
    query = torch.empty((tokens, 64, 128), dtype=torch.float8_e4m3fn, device=meta)
    weights = torch.empty((tokens, 64), device=meta)
    cache = torch.empty((1 << 10, 16 * 132), dtype=torch.uint8, device=meta)
    metadata = geometry(query_lens, context_lens)
    with launching_for(90), Peak() as peak:
        chosen = triton.indexer(query, weights, cache, metadata, top_k)
    context = Context("cuda", (9, 0), "bfloat16", index_heads=64, index_head_dim=128, index_top_k=top_k)
    step = Step(tokens, len(query_lens), max(context_lens))
    planned = max(sum(tensors) for tensors in workspace_tensors("triton", context, step))
    result = sum(part.nbytes for part in chosen)
    assert peak.bytes - result <= planned - query.nbytes <= 1.1 * (peak.bytes - result)


@pytest.mark.parametrize(("query_lens", "context_lens"), [((1, 1), (90, 600)), ((400,), (600,)), ((5, 200), (9, 200))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_torch_stays_within_its_workspace(query_lens, context_lens, dtype, monkeypatch):
    monkeypatch.setattr("kernels.indexer.SCORE_BYTES", 8 << 20)
    made = batch(Shape(query_lens, context_lens, 32, 64), CPU)
    if dtype == torch.float32:
        made = made._replace(query=made.query.float(), cache=torch.zeros(made.cache.shape[0], 16, 128))
    with Peak() as peak:
        chosen = reference.indexer(*made, 64)
    name = str(dtype).removeprefix("torch.")
    context = Context("cpu", None, name, index_heads=32, index_head_dim=128, index_top_k=64)
    step = Step(sum(query_lens), len(query_lens), max(context_lens))
    planned = max(sum(tensors) for tensors in workspace_tensors("torch", context, step))
    assert peak.bytes - sum(part.nbytes for part in chosen) <= planned
