"""Block-diagonal product in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def grouped_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x` [T, G * K] by `weight` [G * N, K], of which each group has N rows: [T, G * N]. G follows from the widths."""
    groups = x.shape[1] // weight.shape[1]
    grouped = x.unflatten(1, (groups, -1)).transpose(0, 1)  # [G, T, K]
    return torch.bmm(grouped, weight.unflatten(0, (groups, -1)).transpose(1, 2)).transpose(0, 1).flatten(1)
