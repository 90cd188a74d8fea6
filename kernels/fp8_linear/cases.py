"""Calls that launch every variant of block-scaled FP8 linear."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.context import Context
from kernels.fp8_linear import GROUP, variants

ROUNDED_TOLERANCE = 6e-2  # of activations rounded to FP8, against those that are not


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    if model is not None and model.fp8_blocks is None:
        return
    *small, large = variants.TILES[arch]
    shapes = [(tile.block_m - 3, outputs, inner) for tile in small for outputs, inner in ((272, 144), (80, 1040))]
    shapes.append((1, 16, 16))
    shapes.append((4 * large.block_m - 3, variants.PROGRAMS // 4 * large.block_n - 16, 16))
    for dtype in variants.DTYPES if model is None else (model.dtype,):
        kind = getattr(torch, dtype)
        tolerance = ROUNDED_TOLERANCE if variants.has_fp8(arch) else TOLERANCES[kind]
        for bias, (tokens, outputs, inner) in enumerate(shapes):
            name = f"[{tokens}, {inner}] x [{inner}, {outputs}] {dtype}" + " with bias" * (bias % 2)
            yield Case(name, call(tokens, outputs, inner, kind, bool(bias % 2)), tolerance)


def call(tokens: int, outputs: int, inner: int, dtype: torch.dtype, bias: bool) -> Callable[..., list[Tensor]]:
    def run(fp8_linear: Callable[..., Any], device: torch.device) -> list[Tensor]:
        x = randn((tokens, inner), dtype, device, seed=1)
        weight, scale = blocks((outputs, inner), device, seed=2)
        return [fp8_linear(x, weight, scale, randn((outputs,), dtype, device, seed=3) if bias else None)]

    return run


def blocks(shape: tuple[int, ...], device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
    """A weight [..., O, I] in FP8 and its scales, each block's its own; subnormal numbers are among the weights."""
    weight = randn(shape, torch.float32, device, seed) * 16
    scale_shape = (*shape[:-2], -(-shape[-2] // GROUP), -(-shape[-1] // GROUP))
    scale = randn(scale_shape, torch.float32, device, seed + 1).abs() / 16 + 0.01
    weight[..., ::7] /= 4096
    return weight.to(torch.float8_e4m3fn), scale
