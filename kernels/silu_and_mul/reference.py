"""SiLU-and-mul in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for `gate_up` [T, 2 * N] (gate first): [T, N] (Shazeer, 2020)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up)
