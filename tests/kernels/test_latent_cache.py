"""From the projections of latent attention to its cache."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error
from kernels.latent_cache import reference, triton, variants
from kernels.latent_cache.cases import cases
from kernels.mla_attention import SHAPES
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies
from tests.kernels.flags import every_form
from tests.kernels.recorded import launched_by_cases
from tests.kernels.test_mla_attention_triton import context

CPU = torch.device("cpu")
FACES = {"torch": reference.latent_cache, "triton": triton.latent_cache}


def by_definition(x: torch.Tensor, position: int) -> torch.Tensor:
    """Pairs of neighbours, as complex numbers, turned (Su et al., 2021)."""
    angles = position * inverse_frequencies(x.shape[-1], 10000.0)[0].double()
    turned = torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


def test_the_reference_agrees_with_the_definition():
    torch.manual_seed(1)
    tokens, heads, nope, rope, rank = 7, 3, 12, 8, 20
    query, latent = torch.randn(tokens, heads + 1, nope + rope)[:, 1:], torch.randn(tokens, rank + rope + 5)[:, 5:]
    before, given = query.clone(), latent.clone()
    weight, positions = torch.randn(rank), torch.tensor([0, 3, 3, 39, 17, 1, 20])
    slots = torch.tensor([5, -1, 0, 11, 7, -1, 2])
    cache = torch.full((3, 4, rank + rope), torch.nan)
    table = cos_sin_table(*inverse_frequencies(rope, 10000.0), 40, torch.float32)
    reference.latent_cache(query, latent, positions, table, weight, 1e-6, cache, slots)
    assert torch.equal(query[..., :nope], before[..., :nope])
    entries = cache.flatten(0, 1)
    assert entries.isnan().all(dim=1).tolist() == [slot not in slots.tolist() for slot in range(12)]
    for token, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
        torch.testing.assert_close(query[token, :, nope:].double(), by_definition(before[token, :, nope:], position))
        if slot >= 0:
            content = given[token, :rank].double()
            normed = content * (content.square().mean() + 1e-6).rsqrt() * weight
            expected = torch.cat((normed, by_definition(given[token, rank:], position)))
            torch.testing.assert_close(entries[slot].double(), expected, atol=1e-5, rtol=1e-5)


with every_form():
    CASES = list(cases(90))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_triton_agrees_with_the_reference(case):
    for result, expected in zip(case.run(triton.latent_cache, CPU), case.run(reference.latent_cache, CPU), strict=True):
        assert error(result, expected) <= case.tolerance


@pytest.mark.parametrize("model", [None, *(context(shape, 16, 90) for shape in SHAPES)], ids=str)
def test_the_cases_launch_all_that_is_declared_and_nothing_else(model):
    with every_form():
        launched = launched_by_cases("latent_cache", 90, model)
        assert launched == set(variants.variants(90, model)) <= set(variants.variants(90))


@pytest.mark.parametrize("face", FACES)
def test_a_slot_of_minus_one_is_not_written(face):
    """Tokens that only fill up a batch leave the cache as it was, the last slot too."""
    cache = torch.full((2, 16, 576), 7.0, dtype=torch.bfloat16)
    query, latent = torch.ones(3, 2, 192, dtype=torch.bfloat16), torch.ones(3, 576, dtype=torch.bfloat16)
    table = torch.cat([torch.ones(4, 32), torch.zeros(4, 32)], dim=1).bfloat16()  # turns nothing
    weight, positions = torch.ones(512, dtype=torch.bfloat16), torch.arange(3)
    FACES[face](query, latent, positions, table, weight, 0.0, cache, torch.tensor([-1, 20, -1]))
    written = (cache.flatten(0, 1) == 1.0).all(dim=1)
    assert written.nonzero().flatten().tolist() == [20]
    assert (cache.flatten(0, 1)[~written] == 7.0).all()
