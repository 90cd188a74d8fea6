"""Calls that launch every variant of mHC before a sub-layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.mhc_pre import variants
from kernels.mhc_pre.reference import Connections
from kernels.selection import Context

CONNECTIONS = Connections(eps=1e-6, norm_eps=1e-6, iterations=20)


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        if "FEW" not in variant.options:
            continue  # launched by what is below
        streams = int(variant.options["STREAMS"])
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        tokens = variants.TOGETHER + 1 if variant.options["FEW"] else variants.MOST_TOKENS + 1
        for hidden in (variants.UNIT, variants.BLOCK + 5 * variants.UNIT):
            name = f"{tokens} tokens, {streams} streams of {hidden}, {dtype}"
            yield Case(name, _call(tokens, streams, hidden, dtype), TOLERANCES[dtype])


def _call(tokens: int, streams: int, hidden: int, dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    mixed = (2 + streams) * streams

    def run(mhc_pre: Callable[..., Any], device: torch.device) -> list[Tensor]:
        x = randn((tokens, streams, hidden), dtype, device, seed=1) * 3
        weight = randn((mixed, streams * hidden), torch.float32, device, seed=2) * (streams * hidden) ** -0.5
        scale, base = (randn((size,), torch.float32, device, seed=size) for size in (3, mixed))
        return list(mhc_pre(x, weight, scale, base, CONNECTIONS))

    return run
