"""Calls that launch every variant of gated norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.gated_norm import variants
from kernels.selection import Context


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        block = int(variant.options["BLOCK"])
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        for size in (block, block - variants.UNIT):
            yield Case(f"5 tokens of 9 heads of {size}, {dtype}", _call(size, dtype), TOLERANCES[dtype])


def _call(size: int, dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    def run(gated_norm: Callable[..., Any], device: torch.device) -> list[Tensor]:
        x = randn((5, 9, size), dtype, device, seed=1)
        gate = randn((5, 22, size), dtype, device, seed=2)[:, 8:17]  # from the fused projection
        return [gated_norm(x, gate, randn((size,), dtype, device, seed=3), 1e-6)]

    return run
