"""Calls that launch every variant of mHC behind the last layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.mhc_head import variants
from kernels.mhc_pre.variants import BLOCK, MOST_TOKENS, TOGETHER, UNIT
from kernels.selection import Context


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        if "FEW" not in variant.options:
            continue  # launched by what is below
        streams = int(variant.options["STREAMS"])
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        tokens = TOGETHER + 1 if variant.options["FEW"] else MOST_TOKENS + 1
        for hidden in (UNIT, BLOCK + 5 * UNIT):
            name = f"{tokens} tokens, {streams} streams of {hidden}, {dtype}"
            yield Case(name, _call(tokens, streams, hidden, dtype), TOLERANCES[dtype])


def _call(tokens: int, streams: int, hidden: int, dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    def run(mhc_head: Callable[..., Any], device: torch.device) -> list[Tensor]:
        x = randn((tokens, streams, hidden), dtype, device, seed=1) * 3
        weight = randn((streams, streams * hidden), torch.float32, device, seed=2) * (streams * hidden) ** -0.5
        scale, base = (randn((size,), torch.float32, device, seed=size) for size in (1, streams))
        return [mhc_head(x, weight, scale, base, 1e-6, 1e-6)]

    return run
