"""MXFP4 by integers: decoded as its definition says, and encoded as DeepSeek's code does it."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels import float4
from kernels.mxfp4 import decoded_halves, encoded


@triton.jit
def decode_all(codes_ptr, exponents_ptr, even_ptr, odd_ptr):
    """Of 256 rows of 32 numbers."""
    row, byte = tl.arange(0, 256), tl.arange(0, 16)
    codes = tl.load(codes_ptr + row[:, None] * 16 + byte[None, :])[:, None, :]
    exponents = tl.load(exponents_ptr + row)[:, None]
    even, odd = decoded_halves(codes, exponents, 256, 32, even_ptr.dtype.element_ty)
    tl.store(even_ptr + row[:, None] * 16 + byte[None, :], even)
    tl.store(odd_ptr + row[:, None] * 16 + byte[None, :], odd)


@triton.jit
def encode_all(x_ptr, codes_ptr, exponents_ptr, ROWS: tl.constexpr):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, 128)[None, :]
    codes, exponents = encoded(tl.load(x_ptr + row * 128 + column), ROWS, 128)
    tl.store(codes_ptr + row * 64 + tl.arange(0, 64)[None, :], codes)
    tl.store(exponents_ptr + row * 4 + tl.arange(0, 4)[None, :], exponents)


def test_all_codes_with_every_exponent():
    """In bfloat16, where subnormal numbers are exact too; 255 is NaN, and what is too large for it infinite."""
    exponents = torch.arange(256, dtype=torch.uint8)
    codes = torch.arange(16, dtype=torch.uint8)
    codes = (codes | (codes.flip(0) << 4)).repeat(256, 1)
    even, odd = (torch.empty((256, 16), dtype=torch.bfloat16) for _ in range(2))
    decode_all[(1,)](codes, exponents, even, odd)
    values = torch.tensor(float4.VALUES, dtype=torch.float64) * 2.0 ** (exponents.double()[:, None] - 127)
    values[255] = torch.nan
    values = values.bfloat16()
    torch.testing.assert_close(even, values, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(odd, values.flip(1), equal_nan=True, rtol=0, atol=0)
    assert even[254, 1] == 2.0**126
    wide = float4.multiplied_out(codes, exponents[:, None].view(torch.float8_e8m0fnu), torch.bfloat16)
    torch.testing.assert_close(wide[:, ::2], values, equal_nan=True, rtol=0, atol=0)


def groups() -> dict[str, torch.Tensor]:
    """Rows of 128 numbers."""
    torch.manual_seed(5)
    halfway = torch.arange(128).view(1, 128) % 32 / 4 - 4 + 2.0
    sizes = 2.0 ** torch.arange(-140, 128, 4).view(-1, 1)
    damaged = torch.randn(4, 128)
    damaged[0, 40], damaged[1, 3], damaged[2, 127] = torch.nan, torch.inf, -torch.inf
    return {
        "normal": torch.randn(64, 128).bfloat16().float(),
        "in the middle of two codes": halfway,
        "of every size": (torch.randn(len(sizes), 128).clamp(-1.9, 1.9) * sizes).bfloat16().float(),
        "zeros": torch.zeros(1, 128),
        "damaged": damaged,
    }


@pytest.mark.parametrize("name", groups())
def test_both_encode_alike(name):
    x = groups()[name]
    rows = triton.next_power_of_2(len(x))
    x = torch.cat((x, torch.zeros(rows - len(x), 128)))
    codes, exponents = torch.empty((rows, 64), dtype=torch.uint8), torch.empty((rows, 4), dtype=torch.uint8)
    encode_all[(1,)](x, codes, exponents, rows)
    expected, powers = float4.quantise(x)
    assert torch.equal(exponents, powers)
    known = (powers != 255).repeat_interleave(16, dim=1)
    assert torch.equal(codes[known], expected[known])
    assert (name == "damaged") == bool((powers == 255).any())


def test_numbers_go_to_the_nearest_and_from_the_middle_to_the_even_code():
    row = torch.tensor([0.0, 0.25, 0.26, 0.75, 1.25, 1.26, 1.75, 2.5, 3.5, 5.0, 5.01, 6.0, -0.25, -0.75, -6.0, -5.0])
    codes, exponents = float4.quantise(row.repeat(2)[None])
    assert exponents.tolist() == [[127]]
    found = float4.unpacked(codes)[0, :16].tolist()
    assert found == [0, 0, 0.5, 1, 1, 1.5, 2, 2, 4, 4, 6, 6, 0, -1, -6, -4]
    # A scale is the least power of two that fits: 6 itself needs none, and the next number twice as much.
    more = torch.zeros(3, 32)
    more[:, 7] = torch.tensor([6.0, 6.03125, 1e-45])
    assert float4.quantise(more)[1].flatten().tolist() == [127, 128, 1]
