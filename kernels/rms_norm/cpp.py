"""RMS norm on a processor, by `kernels/cpu/rows.cpp`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.library import functions, threads
from kernels.fp8_linear.rounded import Rounded

_norm = functions().ingot_rms_norm


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    offset: float = 0.0,
    rounds: bool = False,
) -> Tensor | Rounded:
    """As `reference.rms_norm`, of float32 or bfloat16; `residual` is contiguous."""
    x = x.contiguous()
    out, size = torch.empty_like(x), weight.shape[0]
    _norm(
        x.dtype is torch.bfloat16, out.data_ptr(), x.data_ptr(), weight.data_ptr(),
        None if residual is None else residual.data_ptr(), x.numel() // size, size, eps, offset, threads(),
    )  # fmt: skip
    return Rounded(out) if rounds else out
