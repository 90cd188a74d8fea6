"""From the projections to the cache: Triton, interpreted, against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.cases import error
from kernels.launch import launching_for, listening
from kernels.rotary_cache import reference, triton
from kernels.rotary_cache.cases import cases
from kernels.variants import Variant
from tests.kernels.flags import every_form

CPU = torch.device("cpu")
INDICES = torch.arange(64)
TABLE = torch.cat([torch.ones(64, 32), torch.zeros(64, 32)], dim=1)  # turns nothing


def _cases():
    """All for a GPU that converts to 8 bits itself, and for one that does not what is different there."""
    with every_form():
        yield from ((90, case) for case in cases(90))
        yield from ((80, case) for case in cases(80) if "float8" in case.name and "normed" not in case.name)


CASES = list(_cases())


@pytest.mark.parametrize(("arch", "case"), CASES, ids=[f"{arch} {case.name}" for arch, case in CASES])
def test_triton_agrees_with_the_reference(arch, case):
    with launching_for(arch):
        found = case.run(triton.rotary_cache, CPU)
    for result, expected in zip(found, case.run(reference.rotary_cache, CPU), strict=True):
        assert error(result, expected) <= case.tolerance


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")  # numpy, of signalling NaN
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_value_is_encoded_by_integers_as_torch_does(dtype):
    """All 65536 bit patterns: subnormal numbers, ties, infinities and NaN of either sign included."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    value = bits.view(dtype).view(64, 8, 128)
    other = torch.zeros_like(value)
    caches = [torch.zeros((4, 16, 8, 128), dtype=torch.float8_e4m3fn) for _ in range(2)]
    used: list[Variant] = []
    with launching_for(86), listening(used.append):
        triton.rotary_cache(other.clone(), other, value, INDICES, TABLE.to(dtype), caches[0], caches[1], INDICES)
    assert used[0].arguments[8] == "*u8"
    expected = value.float().clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).flatten()
    assert torch.equal(caches[1].view(torch.uint8).flatten(), expected)


@pytest.mark.parametrize("write", [triton.rotary_cache, reference.rotary_cache], ids=["triton", "torch"])
def test_a_slot_of_minus_one_is_not_written(write):
    """Tokens that only fill up a batch leave the cache as it was, the last slot too."""
    caches = [torch.full((2, 16, 1, 64), 7.0, dtype=torch.bfloat16) for _ in range(2)]
    query, key, value = torch.ones((3, 3, 64), dtype=torch.bfloat16).split(1, dim=1)
    write(query, key, value, INDICES[:3], TABLE.bfloat16(), *caches, torch.tensor([-1, 20, -1]))
    for cache in caches:
        written = (cache.flatten(0, 1) == 1.0).all(dim=(1, 2))
        assert written.nonzero().flatten().tolist() == [20]
        assert (cache.flatten(0, 1)[~written] == 7.0).all()


def _zeros(head_dim: int, rotary_dim: int):
    query, key, value = torch.zeros((1, 3, head_dim), dtype=torch.bfloat16).split(1, dim=1)
    caches = [torch.zeros((1, 16, 1, head_dim), dtype=torch.bfloat16) for _ in range(2)]
    return query, key, value, INDICES[:1], torch.zeros((4, rotary_dim), dtype=torch.bfloat16), *caches, INDICES[:1]


def test_a_head_larger_than_any_block_is_refused():
    with pytest.raises(ValueError, match=r"256.*512"):
        triton.rotary_cache(*_zeros(512, 64))


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(60, 32), (64, 24)])
def test_a_size_that_leaves_numbers_unaligned_is_refused(head_dim, rotary_dim):
    with pytest.raises(AssertionError):
        triton.rotary_cache(*_zeros(head_dim, rotary_dim))
