"""Calls that launch every variant of the gated activation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.gated_activation import variants
from kernels.selection import Context


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        constants = dict(variant.constants)
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        activation = str(constants["ACTIVATION"])
        limit = 0.75 if constants["LIMITED"] else None
        for rows, size in ((1, variants.UNIT), (variants.ROWS + 3, variants.BLOCK + 5 * variants.UNIT)):
            yield Case(f"({rows}, {size}) {dtype} {activation} limit {limit}",
                       _call(rows, size, dtype, activation, limit), TOLERANCES[dtype])  # fmt: skip


def _call(
    rows: int, size: int, dtype: torch.dtype, activation: str, limit: float | None
) -> Callable[..., list[Tensor]]:
    def run(gated_activation: Callable[..., Any], device: torch.device) -> list[Tensor]:
        gate_up = randn((rows, 2 * size), dtype, device, seed=1) * 2
        return [gated_activation(gate_up, activation, limit)]

    return run
