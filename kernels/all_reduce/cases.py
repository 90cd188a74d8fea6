"""Calls that launch every variant of the all-reduce, one rank at a time: the parts of the others are there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.all_reduce import CHUNK, variants
from kernels.all_reduce.shared import alone
from kernels.cases import Case, randn
from kernels.context import Context


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        count = int(variant.options["RANKS"])
        for size in (variants.UNIT, CHUNK, 2 * CHUNK + 3 * variants.UNIT):
            yield Case(f"{size} of {count} ranks {dtype}", _call(size, count, dtype), 0.0)


def _call(size: int, count: int, dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    def run(all_reduce: Callable[..., Any], device: torch.device) -> list[Tensor]:
        rank = count // 2
        shared = alone(rank, count, device)
        parts = [randn((size,), dtype, device, seed=seed) for seed in range(count)]
        for other in range(count):
            if other != rank:
                shared.part(other, parts[other]).copy_(parts[other])
        return [all_reduce(parts[rank], shared)]

    return run
