"""Calls that launch every variant of RMS norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.rms_norm import variants
from kernels.selection import Context


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        constants = dict(variant.constants)
        block, residual = int(constants["BLOCK"]), bool(constants["RESIDUAL"])
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        # The whole block, and the shortest row that needs it.
        for size, offset in ((block, 0.0), (block // 2 + variants.UNIT, 1.0)):
            shape = (5, size) if residual else (5, 3, size)
            form = f"{'with' if residual else 'without'} residual{', offset' if offset else ''}"
            yield Case(f"{shape} {dtype} {form}", _call(shape, dtype, residual, offset), TOLERANCES[dtype])


def _call(shape: tuple[int, ...], dtype: torch.dtype, residual: bool, offset: float) -> Callable[..., list[Tensor]]:
    def run(rms_norm: Callable[..., Any], device: torch.device) -> list[Tensor]:
        # Where there are heads, they are some of a wider tensor's, as q and k are of the fused projection.
        x = randn((shape[0], 2 * shape[1] + 1, *shape[2:]) if len(shape) == 3 else shape, dtype, device, seed=1)
        x = x[:, 1 : 1 + shape[1]] if len(shape) == 3 else x
        weight = randn(shape[-1:], dtype, device, seed=2)
        before = randn(shape, dtype, device, seed=3) if residual else None
        out = rms_norm(x, weight, 1e-6, before, offset)
        return [out] if before is None else [out, before]

    return run
