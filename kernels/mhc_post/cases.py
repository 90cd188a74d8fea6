"""Calls that launch every variant of mHC behind a sub-layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.mhc_post import variants
from kernels.selection import Context


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        streams = int(variant.options["STREAMS"])
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        for hidden in (variants.UNIT, variants.BLOCK + 5 * variants.UNIT):
            yield Case(f"3 tokens, {streams} streams of {hidden}, {dtype}", _call(streams, hidden, dtype),
                       TOLERANCES[dtype])  # fmt: skip


def _call(streams: int, hidden: int, dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    def run(mhc_post: Callable[..., Any], device: torch.device) -> list[Tensor]:
        x = randn((3, hidden), dtype, device, seed=1)
        before = randn((3, streams, hidden), dtype, device, seed=2)
        post = randn((3, streams), torch.float32, device, seed=3)
        mix = randn((3, streams, streams), torch.float32, device, seed=4)
        return [mhc_post(x, before, post, mix)]

    return run
