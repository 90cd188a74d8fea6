"""Calls that launch every variant of RMS norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.fp8_linear import GROUP
from kernels.fp8_linear.reference import quantise
from kernels.rms_norm import variants
from kernels.selection import Context

ROUNDED_TOLERANCE = 2e-2  # of rows in FP8, of which some lie on the other side of a tie


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        constants = dict(variant.constants)
        block, residual, rounded = (int(constants[name]) for name in ("BLOCK", "RESIDUAL", "ROUNDED"))
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        # The whole block, and the shortest row that needs it.
        for size, offset in ((block, 0.0), (block // 2 + variants.UNIT, 1.0)):
            shape = (67 if rounded else 5, size) if residual else (5, 3, size)
            form = f"{'with' if residual else 'without'} residual{', offset' * bool(offset)}{', rounded' * rounded}"
            call = _rounding(shape, dtype, offset) if rounded else _call(shape, dtype, bool(residual), offset)
            yield Case(f"{shape} {dtype} {form}", call, ROUNDED_TOLERANCE if rounded else TOLERANCES[dtype])


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


def _rounding(shape: tuple[int, ...], dtype: torch.dtype, offset: float) -> Callable[..., list[Tensor]]:
    """As multiplied out again: on the other side of a tie, a number in FP8 is another one."""

    def run(rms_norm: Callable[..., Any], device: torch.device) -> list[Tensor]:
        x, before = (randn(shape, dtype, device, seed) for seed in (1, 3))
        rounded = rms_norm(x, randn(shape[-1:], dtype, device, seed=2), 1e-6, before, offset, rounds=True)
        if rounded.values is None:  # torch leaves that to the product
            values, scale = quantise(rounded.rows)
        else:
            values, scale = rounded.values, rounded.scale.T
        wide = values.float() * scale.repeat_interleave(GROUP, -1)[:, : shape[-1]]
        return [rounded.rows, before, wide, scale]

    return run
