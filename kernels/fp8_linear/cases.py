"""Calls that launch every variant of block-scaled FP8 linear."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.context import Context
from kernels.fp8_linear import GROUP, variants
from kernels.gated_activation import ACTIVATIONS

ROUNDED_TOLERANCE = 6e-2  # of activations rounded to FP8, against those that are not


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    if model is not None and model.fp8_blocks is None:
        return
    *small, large = variants.TILES[arch]
    fewest = [variants.FEW_TOKENS] if arch in variants.FEW else []
    most = [*fewest, *(tile.block_m for tile in small)]
    shapes = [(tokens - 3, outputs, inner) for tokens in most for outputs, inner in ((272, 144), (80, 1040))]
    shapes.append((1, 16, 16))
    shapes.append((4 * large.block_m - 3, variants.PROGRAMS // 4 * large.block_n - 16, 16))
    for dtype in variants.DTYPES if model is None else (model.dtype,):
        kind = getattr(torch, dtype)
        for bias, (tokens, outputs, inner) in enumerate(shapes):
            name = f"[{tokens}, {inner}] x [{inner}, {outputs}] {dtype}" + " with bias" * (bias % 2)
            yield Case(name, call(tokens, outputs, inner, kind, bool(bias % 2)), tolerance(arch, tokens, kind))
        for tokens in (3, 21, 70):
            name = f"[{tokens}, 3 x 640] x 3 x [640, 128] {dtype}"
            run = call(tokens, 3 * 128, 640, kind, bias=False, groups=3)
            yield Case(name, run, tolerance(arch, tokens, kind))
        for activation in (ACTIVATIONS if model is None else (model.activation,)) if arch in variants.FEW else ():
            for bias, inner in enumerate((144, 1040)):
                name = f"[5, {inner}] x [{inner}, 512] {dtype} {activation}" + " with bias" * bias
                run = call(5, 512, inner, kind, bool(bias), ending=(activation, 0.5 if activation == "silu" else None))
                yield Case(name, run, TOLERANCES[kind])


def tolerance(arch: int, tokens: int, dtype: torch.dtype) -> float:
    """Activations are rounded to FP8 where the GPU has it, but for those of few tokens."""
    rounds = variants.has_fp8(arch) and not variants.are_few(arch, tokens)
    return ROUNDED_TOLERANCE if rounds else TOLERANCES[dtype]


def call(
    tokens: int,
    outputs: int,
    inner: int,
    dtype: torch.dtype,
    bias: bool,
    groups: int = 1,
    ending: tuple[str, float | None] = ("", None),
) -> Callable[..., list[Tensor]]:
    def run(fp8_linear: Callable[..., Any], device: torch.device) -> list[Tensor]:
        x = randn((tokens, groups * inner), dtype, device, seed=1)
        weight, scale = blocks((outputs, inner), device, seed=2)
        if groups > 1:
            return [fp8_linear(x, weight, scale, groups=groups)]
        if ending[0]:  # of numbers near 1
            scale /= inner**0.5
        added = randn((outputs,), dtype, device, seed=3) if bias else None
        return [fp8_linear(x, weight, scale, added, *ending) if ending[0] else fp8_linear(x, weight, scale, added)]

    return run


def blocks(shape: tuple[int, ...], device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
    """A weight [..., O, I] in FP8 and its scales, each block's its own; subnormal numbers are among the weights."""
    weight = randn(shape, torch.float32, device, seed) * 16
    scale_shape = (*shape[:-2], -(-shape[-2] // GROUP), -(-shape[-1] // GROUP))
    scale = randn(scale_shape, torch.float32, device, seed + 1).abs() / 16 + 0.01
    weight[..., ::7] /= 4096
    return weight.to(torch.float8_e4m3fn), scale
