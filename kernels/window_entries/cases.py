"""Calls that launch every variant of the op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.packed_entries.variants import DIM, ROPE
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies
from kernels.selection import Context
from kernels.window_entries import variants

POSITIONS = (3, 39, 0, 17, 18, 19, 2, 31, 7, 8, 38, 1)


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        for tokens, heads in ((1, 64), (11, 3)):
            yield Case(f"{tokens} tokens, {heads} heads, {dtype}", _call(tokens, heads, dtype), TOLERANCES[dtype])


def table(device: torch.device) -> Tensor:
    """Of 40 positions."""
    return cos_sin_table(*inverse_frequencies(ROPE, 10000.0), 40, torch.float32).to(device)


def _call(tokens: int, heads: int, dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    def run(window_entries: Callable[..., Any], device: torch.device) -> list[Tensor]:
        query = randn((tokens, heads, DIM), dtype, device, seed=1) * 3
        entry = randn((tokens, 1024 + DIM), dtype, device, seed=2)[:, 1024:]
        weight = randn((DIM,), dtype, device, seed=3)
        positions = torch.tensor(POSITIONS, device=device)[1 : tokens + 1]
        return list(window_entries(query, entry, positions, table(device), weight, 1e-6))

    return run
