"""Gated activation on a processor, by `kernels/cpu/rows.cpp`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.cpu.library import functions, threads

_activate = functions().ingot_gated_activation
_NUMBERS = {"silu": 0, "gelu_tanh": 1}


def gated_activation(gate_up: Tensor, activation: str = "silu", limit: float | None = None) -> Tensor:
    """As `reference.gated_activation`, of float32 or bfloat16, without the exact "gelu"."""
    gate_up = gate_up.contiguous()
    rows, width = gate_up.shape
    out = gate_up.new_empty((rows, width // 2))
    _activate(
        gate_up.dtype is torch.bfloat16, out.data_ptr(), gate_up.data_ptr(), rows, width // 2, _NUMBERS[activation],
        math.inf if limit is None else limit, threads(),
    )  # fmt: skip
    return out
