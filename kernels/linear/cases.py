"""Calls that launch every variant of linear for few tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.context import Context
from kernels.linear import variants

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
            for tokens, outputs, inner, bias in sizes:
                yield Case(f"{tokens} x {inner} x {outputs} {dtype}{' bias' * bias}",
                           _call(tokens, outputs, inner, getattr(torch, dtype), bias),
                           TOLERANCES[getattr(torch, dtype)])  # fmt: skip
            fewest = most + 1


def _call(tokens: int, outputs: int, inner: int, dtype: torch.dtype, bias: bool) -> Callable[..., list[Tensor]]:
    def run(linear: Callable[..., Any], device: torch.device) -> list[Tensor]:
        x = randn((tokens, inner), dtype, device, seed=1)
        weight = randn((outputs, inner), dtype, device, seed=2)
        added = randn((outputs,), dtype, device, seed=3) if bias else None
        return [linear(x, weight, added)]

    return run
