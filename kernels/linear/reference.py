"""Linear in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` [T, I] times `weight` [O, I] transposed, plus `bias` [O]: [T, O] in the dtype of `x`."""
    return torch.nn.functional.linear(x, weight, bias)
