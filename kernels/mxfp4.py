"""MXFP4 in Triton by integer arithmetic, which every architecture has. `float4` says what it is, in torch."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def halves(codes):
    """Bytes -> their first and their second number in float16, each 2^14 times too small: the three bits of a code are
    moved into the place of a float16's last two of exponent and first of mantissa, subnormal ones too."""
    bits = codes.to(tl.uint16)
    first = ((bits & 0x07) << 9) | ((bits & 0x08) << 12)
    second = ((bits & 0x70) << 5) | ((bits & 0x80) << 8)
    return first.to(tl.float16, bitcast=True), second.to(tl.float16, bitcast=True)


@triton.jit
def power_of_two(exponents):
    """Bytes that count from 127 -> float32, of which the least is subnormal, and 255 is NaN."""
    wide = exponents.to(tl.int32)
    bits = tl.where(wide == 0, 0x400000, tl.where(wide == 255, 0x7FC00000, wide << 23))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def decoded_halves(codes, exponents, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TYPE: tl.constexpr):
    """[ROWS, COLUMNS / 32, 16] bytes and [ROWS, COLUMNS / 32] exponents -> the numbers of even columns and those of odd
    ones, [ROWS, COLUMNS / 2] each. bfloat16 holds all of them exactly, those too that another format has no exponent
    for."""
    first, second = halves(codes)
    scale = power_of_two(exponents)[:, :, None]
    even = first.to(tl.float32) * 16384.0 * scale
    odd = second.to(tl.float32) * 16384.0 * scale
    return tl.reshape(even.to(TYPE), [ROWS, COLUMNS // 2]), tl.reshape(odd.to(TYPE), [ROWS, COLUMNS // 2])


@triton.jit
def encoded(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """As `float4.quantise`: [ROWS, COLUMNS] float32 -> bytes [ROWS, COLUMNS / 2] and exponents [ROWS, COLUMNS / 32]."""
    grouped = tl.reshape(x, [ROWS, COLUMNS // 32, 32])
    magnitude = tl.abs(grouped)
    largest = tl.maximum(tl.max(magnitude, axis=2), 7.052966104933725e-38)  # 6 * 2^-126
    unknown = tl.max((grouped != grouped).to(tl.int32), axis=2)
    bits = (largest * (1.0 / 6.0)).to(tl.int32, bitcast=True)
    exponent = tl.where(unknown != 0, 255, (bits + 0x7FFFFF) >> 23)
    inverse = (tl.maximum(254 - exponent, 0) << 23).to(tl.float32, bitcast=True)
    wanted = magnitude * inverse[:, :, None]
    # In the middle between two the even code is taken.
    code = (wanted > 0.25).to(tl.int32) + (wanted >= 0.75).to(tl.int32) + (wanted > 1.25).to(tl.int32)
    code += (wanted >= 1.75).to(tl.int32) + (wanted > 2.5).to(tl.int32) + (wanted >= 3.5).to(tl.int32)
    code += (wanted > 5.0).to(tl.int32)
    code |= (grouped.to(tl.int32, bitcast=True) >> 28) & 8
    first, second = tl.split(tl.reshape(code, [ROWS, COLUMNS // 2, 2]))
    return (first | (second << 4)).to(tl.uint8), exponent.to(tl.uint8)
