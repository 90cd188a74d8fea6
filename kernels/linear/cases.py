"""Calls that launch every variant of linear for few tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.context import Context
from kernels.gated_activation import ACTIVATIONS
from kernels.linear import variants

WIDE_TOLERANCE = 1e-4  # of sums in float32, which matrix units cut off rather than round
MOST_PROCESSORS = 256  # more than any GPU has: of so many wide tiles, each gets its own


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    """Few outputs of long rows, which are split; of short ones, which are not; and many outputs. Odd sizes are among
    them."""
    for dtype in variants.DTYPES if model is None else (model.dtype,):
        fewest = 1
        for narrow, *wide in variants.TILES.get(arch, ()):
            most, outputs, inner = narrow.tokens, narrow.outputs, narrow.inner
            sizes = [
                (fewest, outputs + 13, inner + variants.UNIT, True),
                (most, 2 * outputs, 9 * inner - variants.UNIT, False),
                (most - 3, outputs + 1, 9 * inner, True),
            ]
            sizes += [(most, MOST_PROCESSORS * tile.outputs - 5, tile.inner + variants.UNIT, True) for tile in wide]
            for activation in ("", *(ACTIVATIONS if model is None else (model.activation,))):
                for tokens, outputs, inner, bias in sizes:
                    outputs += outputs % 2 if activation else 0
                    limit = 0.5 if activation == "silu" and bias else None
                    yield Case(f"{tokens} x {inner} x {outputs} {dtype}{' bias' * bias} {activation}",
                               _call(tokens, outputs, inner, getattr(torch, dtype), bias, activation, limit),
                               TOLERANCES[getattr(torch, dtype)])  # fmt: skip
            if model is None or model.float32_products:
                for tokens, outputs, inner, _ in sizes:
                    yield Case(f"{tokens} x {inner} x {outputs} {dtype} in float32",
                               _into(tokens, outputs, inner, getattr(torch, dtype)), WIDE_TOLERANCE)  # fmt: skip
            fewest = most + 1


def _into(tokens: int, outputs: int, inner: int, dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    """A product of `dtype` whose sums are kept as they are."""

    def run(linear: Callable[..., Any], device: torch.device) -> list[Tensor]:
        x = randn((tokens, inner), dtype, device, seed=1)
        weight = randn((outputs, inner), dtype, device, seed=2)
        return [linear(x, weight, out=torch.empty(tokens, outputs, dtype=torch.float32, device=device))]

    return run


def _call(
    tokens: int, outputs: int, inner: int, dtype: torch.dtype, bias: bool, activation: str, limit: float | None
) -> Callable[..., list[Tensor]]:
    def run(linear: Callable[..., Any], device: torch.device) -> list[Tensor]:
        x = randn((tokens, inner), dtype, device, seed=1)
        weight = randn((outputs, inner), dtype, device, seed=2)
        if activation:  # of numbers near 1
            weight /= inner**0.5
        added = randn((outputs,), dtype, device, seed=3) if bias else None
        return [linear(x, weight, added, activation, limit) if activation else linear(x, weight, added)]

    return run
