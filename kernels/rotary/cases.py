"""Calls that launch every variant of the rotary embedding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.rotary import variants
from kernels.rotary.frequencies import cos_sin_table, inverse_frequencies
from kernels.selection import Context


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        constants = dict(variant.constants)
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        block, unit, interleaved = int(constants["HALF"]), int(constants["UNIT"]), bool(constants["INTERLEAVED"])
        shortest = block // 2 + unit  # pairs, of which this block is the smallest that covers them
        for half in {1: (block - 1, shortest)}.get(unit, (block, shortest)):
            name = f"{2 * half} dimensions {dtype} {'interleaved' if interleaved else 'halves'}"
            yield Case(name, _call(half, dtype, interleaved), TOLERANCES[dtype])


def _call(half: int, dtype: torch.dtype, interleaved: bool) -> Callable[..., list[Tensor]]:
    def run(rotary: Callable[..., Any], device: torch.device) -> list[Tensor]:
        head_dim = -(-2 * half // variants.STRIDE_UNIT) * variants.STRIDE_UNIT + variants.STRIDE_UNIT
        heads = randn((7, 5, head_dim), dtype, device, seed=1)
        table = cos_sin_table(*inverse_frequencies(2 * half, 10000.0), 40, dtype).to(device)
        positions = torch.tensor([3, 39, 0, 17, 18, 19, 2, 31], device=device)[1:]  # of a longer tensor, 8 bytes in
        rotary(heads[:, :3], positions, table, interleaved)
        return [heads]  # including the two heads and the dimensions that must not change

    return run
