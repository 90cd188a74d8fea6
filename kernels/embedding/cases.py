"""Calls that launch every variant of the embedding gather."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import Case, randn
from kernels.embedding import variants
from kernels.selection import Context

_VOCABULARY = 37


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        dtype = torch.bfloat16 if variant.arguments[1] == "*bf16" else torch.float16
        for size in (variants.UNIT, variants.BLOCK, variants.BLOCK + 3 * variants.UNIT):
            yield Case(f"rows of {size} {dtype}", _call(size, dtype), 0.0)


def _call(size: int, dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    def run(embedding: Callable[..., Any], device: torch.device) -> list[Tensor]:
        table = randn((_VOCABULARY, size), dtype, device, seed=1)
        ids = torch.tensor([9, 0, _VOCABULARY - 1, 5, 5, 12], device=device)[1:]  # of a longer tensor, 8 bytes in
        return [embedding(ids, table)]

    return run
