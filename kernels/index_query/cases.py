"""Calls that launch every variant of the op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import Case, randn
from kernels.index_cache.cases import TOLERANCE
from kernels.index_cache.variants import DIM
from kernels.index_query import variants
from kernels.indexer import key_bytes
from kernels.selection import Context
from kernels.window_entries.cases import POSITIONS, table


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        for tokens, heads in ((11, 64), (3, 5)):
            yield Case(f"{tokens} tokens, {heads} heads, {dtype}", _call(tokens, heads, dtype), TOLERANCE)


def _call(tokens: int, heads: int, dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    def run(index_query: Callable[..., Any], device: torch.device) -> list[Tensor]:
        query = randn((tokens, heads, DIM), dtype, device, seed=1)
        weights = randn((tokens, heads), torch.float32, device, seed=2)
        cache = torch.zeros((1, 64 * key_bytes(DIM)), dtype=torch.uint8, device=device)
        positions = torch.tensor(POSITIONS, device=device)[1 : tokens + 1]
        codes, out = index_query(query, weights, positions, table(device), cache)
        return [codes.float() * out.unsqueeze(-1)]

    return run
