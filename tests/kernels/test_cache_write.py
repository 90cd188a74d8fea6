"""Cache write: Triton, interpreted, against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.cache_write import reference, triton
from kernels.cache_write.cases import cases
from kernels.cases import error
from kernels.launch import launching_for, listening
from kernels.variants import Variant

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("arch", "case"),
    [(arch, case) for arch in (80, 90) for case in cases(arch)],
    ids=lambda value: getattr(value, "name", value),
)
def test_triton_agrees_with_the_reference(arch, case):
    """To the bit, in 16 and in 8 bits, both for GPUs that convert to 8 bits themselves and for those that cannot."""
    with launching_for(arch):
        found = case.run(triton.cache_write, CPU)
    for result, expected in zip(found, case.run(reference.cache_write, CPU), strict=True):
        assert error(result, expected) <= case.tolerance


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")  # numpy, of signalling NaN
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_number_is_encoded_by_integers_as_torch_does(dtype):
    """All 65536 bit patterns: subnormal numbers, ties, infinities and NaN of either sign included."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    x = bits.view(dtype).view(64, 8, 128)
    caches = [torch.zeros((4, 16, 8, 128), dtype=torch.float8_e4m3fn) for _ in range(2)]
    used: list[Variant] = []
    with launching_for(86), listening(used.append):
        triton.cache_write(x, x, caches[0], caches[1], torch.arange(64))
    assert used[0].arguments[2] == "*u8"
    expected = x.float().clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).flatten()
    for cache in caches:
        assert torch.equal(cache.view(torch.uint8).flatten(), expected)


def test_a_slot_of_minus_one_is_not_written():
    """Tokens that only fill up a batch leave the cache as it was, the last slot too."""
    for write in (triton.cache_write, reference.cache_write):
        caches = [torch.full((2, 16, 1, 64), 7.0, dtype=torch.bfloat16) for _ in range(2)]
        x = torch.ones((3, 1, 64), dtype=torch.bfloat16)
        write(x, x, caches[0], caches[1], torch.tensor([-1, 20, -1]))
        for cache in caches:
            written = (cache.flatten(0, 1) == 1.0).all(dim=(1, 2))
            assert written.nonzero().flatten().tolist() == [20]
            assert (cache.flatten(0, 1)[~written] == 7.0).all()
