"""float8_e4m3fn by integer arithmetic, for GPUs before sm_89, which have no instruction for it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode_e4m3(byte):
    """uint8 -> float16, exact. The bits are moved into a float16's place, whose exponent counts from 2^8 further down;
    multiplying by 256 puts that right, subnormal numbers too. 0x7f and 0xff are NaN."""
    bits = byte.to(tl.uint16)
    half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), half.to(tl.float32) * 256.0).to(tl.float16)
