"""From the projections of an indexer to its cache, and to the queries that read it."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error
from kernels.context import Context
from kernels.index_cache import reference, triton, variants
from kernels.index_cache.cases import cases
from kernels.index_cache.norm import KeyNorm
from kernels.index_cache.reference import hadamard, pages, quantise
from kernels.indexer import key_bytes
from kernels.launch import launching_for
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies
from tests.kernels.recorded import launched_by_cases

CPU = torch.device("cpu")
FACES = {"torch": reference.index_cache, "triton": triton.index_cache}
CASES = [(arch, case) for arch in (80, 90) for case in cases(arch)]


@pytest.mark.parametrize(("arch", "case"), CASES, ids=[f"{arch} {case.name}" for arch, case in CASES])
def test_triton_agrees_with_the_reference(arch, case):
    with launching_for(arch):
        found = case.run(triton.index_cache, CPU)
    for result, expected in zip(found, case.run(reference.index_cache, CPU), strict=True):
        assert error(result, expected) <= case.tolerance


@pytest.mark.parametrize("model", [None, False, True], ids=str)
@pytest.mark.parametrize("arch", [80, 90])
def test_the_cases_launch_all_that_is_declared_and_nothing_else(arch, model):
    context = None if model is None else Context("cuda", divmod(arch, 10), "bfloat16", index_interleaved=model)
    launched = launched_by_cases("index_cache", arch, context)
    assert launched == set(variants.variants(arch, context)) <= set(variants.variants(arch))


def test_a_page_has_its_keys_first_and_their_scales_behind_all_of_them():
    """As DeepSeek's kernels have it: 64 tokens in 8,448 bytes."""
    cache = torch.zeros((3, 64 * key_bytes(128)), dtype=torch.uint8)
    assert cache.shape[1] == 8448
    codes, scales = quantise(torch.randn(2, 128))
    reference.write_keys(codes, scales, cache, torch.tensor([70, 191]))
    assert torch.equal(cache[1, 6 * 128 : 7 * 128], codes[0].view(torch.uint8))
    assert torch.equal(cache[2, 63 * 128 : 8192], codes[1].view(torch.uint8))
    assert cache[1, 8192 + 24 : 8192 + 28].view(torch.float32).item() == scales[0].item()
    assert cache[2, 8444:].view(torch.float32).item() == scales[1].item()
    assert int(cache.count_nonzero()) <= 2 * 132


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 448.0, 1e6])
def test_scales_are_the_least_powers_of_two_that_fit(size):
    x = torch.randn(50, 256) * size
    codes, scales = quantise(x)
    largest = x.unflatten(-1, (2, 128)).abs().amax(-1).clamp(min=1e-4)
    assert torch.equal(scales.log2(), (largest.double() / 448).log2().ceil().float())
    found = codes.float().unflatten(-1, (2, 128)) * scales.unsqueeze(-1)
    assert (found.flatten(-2) - x).abs().max() <= 16 * scales.max()


def test_the_transform_keeps_products_and_spreads_an_outlier():
    x, y = torch.randn(5, 64), torch.randn(7, 64)
    torch.testing.assert_close(hadamard(x) @ hadamard(y).T, x @ y.T)
    outlier = torch.zeros(1, 64)
    outlier[0, 9] = 8.0
    assert (hadamard(outlier).abs() == 1.0).all()


@pytest.mark.parametrize("interleaved", [False, True])
def test_keys_in_8_bits_are_near_those_in_float32(interleaved):
    """Of heads and keys of 128 numbers and of 32, and all in one batch with padding."""
    for dim, rotary in ((128, 64), (32, 8)):
        torch.manual_seed(1)
        query, key = torch.randn(6, 3, dim), torch.randn(7, dim)
        norm = KeyNorm(torch.randn(dim), torch.randn(dim), 1e-6)
        table = cos_sin_table(*inverse_frequencies(rotary, 10000.0), 40, torch.float32)
        slots, positions = torch.tensor([5, 0, -1, 31, 2, -1, 16]), torch.arange(7) * 5
        whole, packed = torch.zeros(2, 16, dim), torch.zeros((2, 16 * key_bytes(dim)), dtype=torch.uint8)
        weights = torch.rand(6, 3)
        exact, of_heads = reference.index_cache(
            query.clone(), key.clone(), weights, positions, table, norm, whole, slots, interleaved
        )
        codes, scaled = reference.index_cache(
            query.clone(), key.clone(), weights, positions, table, norm, packed, slots, interleaved
        )
        keys, scales = pages(packed, dim)
        keys = (keys.float() * scales).flatten(0, 1)
        assert keys.any(dim=1).nonzero().flatten().tolist() == [0, 2, 5, 16, 31]
        expected = (exact @ whole.flatten(0, 1).T) * of_heads.unsqueeze(-1)
        assert error((codes.float() @ keys.T) * scaled.unsqueeze(-1), expected) < 0.06


@pytest.mark.parametrize("face", FACES)
def test_a_slot_of_minus_one_is_not_written(face):
    cache = torch.full((2, 16 * 132), 7, dtype=torch.uint8)
    before = cache.clone()
    query, key = torch.ones(0, 64, 128, dtype=torch.bfloat16), torch.randn(3, 128, dtype=torch.bfloat16)
    table = torch.cat([torch.ones(4, 32), torch.zeros(4, 32)], dim=1).bfloat16()
    norm = KeyNorm(torch.ones(128), torch.zeros(128), 1e-6)
    slots = torch.tensor([-1, 20, -1])
    FACES[face](query, key, torch.ones(0, 64), torch.arange(3), table, norm, cache, slots, False)
    changed = (cache != before).nonzero()
    assert changed[:, 0].unique().tolist() == [1]
    places = set(changed[:, 1].tolist())
    assert places <= {*range(512, 640), *range(2048 + 16, 2048 + 20)}
    assert len(places) > 100
