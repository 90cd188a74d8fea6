"""MXFP4 in plain torch: two numbers of four bits a byte, the first in its lower half, and for each 32 of a row a power
of two as an exponent that counts from 127 (OCP Microscaling Formats 1.0, 2023, section 5.3.3)."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

GROUP: Final = 32  # numbers that share a scale
LARGEST: Final = 6.0  # that a code stands for
# Between one code and the next.
_MIDDLES: Final = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
# What the codes stand for.
VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def unpacked(codes: Tensor) -> Tensor:
    """[..., columns / 2] of bytes -> [..., columns] float32, not scaled."""
    of_code = torch.tensor(VALUES, device=codes.device)
    of_byte = torch.stack((of_code.repeat(16), of_code.repeat_interleave(16)), dim=-1)  # [256, 2]
    pairs = of_byte.index_select(0, codes.view(torch.uint8).flatten().int())
    return pairs.view(*codes.shape[:-1], -1)


def multiplied_out(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The same, times `scales` [..., columns / 32] float8_e8m0fnu, in `dtype`."""
    grouped = unpacked(codes).unflatten(-1, (-1, GROUP))
    wide: Tensor = (grouped * scales.float().unsqueeze(-1)).flatten(-2)
    return wide.to(dtype)


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """[..., dim] of a multiple of 32 -> bytes [..., dim / 2] and exponents [..., dim / 32], uint8. A group's scale is
    the least power of two, but at least 2^-126, that makes its largest number at most 6; numbers go to the nearest,
    those in the middle to the even code. A group with infinity or NaN is NaN."""
    grouped = x.float().unflatten(-1, (-1, GROUP))
    wanted = grouped.abs().amax(-1).clamp(min=LARGEST * 2.0**-126) * (1 / LARGEST)
    exponents = ((wanted.view(torch.int32) + 0x7FFFFF) >> 23).where(wanted.isfinite(), 255)
    inverse = ((254 - exponents).clamp(min=0) << 23).view(torch.float32)
    magnitude = grouped.abs().mul_(inverse.unsqueeze(-1))
    codes = torch.zeros_like(magnitude, dtype=torch.uint8)
    for code, middle in enumerate(_MIDDLES):
        codes += magnitude >= middle if code % 2 else magnitude > middle
    codes |= grouped.signbit().to(torch.uint8) << 3
    even, odd = codes.flatten(-2).unflatten(-1, (-1, 2)).unbind(-1)
    return even | (odd << 4), exponents.to(torch.uint8)
