"""MXFP4 in plain torch: two numbers of four bits a byte, the first in its lower half, and for each 32 of a row a power
of two as an exponent that counts from 127 (OCP Microscaling Formats 1.0, 2023, section 5.3.3)."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

GROUP: Final = 32  # numbers that share a scale
# What the codes stand for.
VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def unpacked(codes: Tensor) -> Tensor:
    """[..., columns / 2] of bytes -> [..., columns] float32, not scaled."""
    bits = codes.view(torch.uint8).int()
    return torch.tensor(VALUES, device=codes.device)[torch.stack((bits & 15, bits >> 4), dim=-1).flatten(-2)]


def multiplied_out(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The same, times `scales` [..., columns / 32] float8_e8m0fnu, in `dtype`."""
    grouped = unpacked(codes).unflatten(-1, (-1, GROUP))
    wide: Tensor = (grouped * scales.float().unsqueeze(-1)).flatten(-2)
    return wide.to(dtype)
