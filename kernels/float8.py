"""float8_e4m3fn by integer arithmetic, for GPUs before sm_89, which have no instruction for it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode_e4m3(byte):
    """uint8 -> float32, of numbers that float16 and bfloat16 hold exactly, too. The bits are moved into a float16's
    place, whose exponent counts from 2^8 further down; multiplying by 256 puts that right, subnormal numbers too. 0x7f
    and 0xff are NaN."""
    bits = byte.to(tl.uint16)
    half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), half.to(tl.float32) * 256.0)


@triton.jit
def encode_e4m3(x):
    """float32 of at most 448 -> the uint8 nearest to it. Ties go to even, NaN stays NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # Below 2^-6 all steps are 2^-9 wide: the sum with 2^14, where float32 has that step, is rounded to it.
    small = (tl.abs(x) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    # Otherwise: 20 bits fewer of mantissa, and an exponent that counts from 2^-7 in place of 2^-127.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    byte = tl.where(magnitude < 0x3C800000, small, normal)
    byte = tl.where(magnitude > 0x7F800000, 0x7F, byte)
    return (byte | ((bits >> 24) & 0x80)).to(tl.uint8)
