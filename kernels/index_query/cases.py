"""Calls that launch every variant of the op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import Case, randn
from kernels.index_cache.cases import TOLERANCE, TOLERANCE_OF_4_BITS
from kernels.index_cache.reference import numbers, pages
from kernels.index_cache.variants import DIM
from kernels.index_query import variants
from kernels.indexer import key_bytes
from kernels.selection import Context
from kernels.window_entries.cases import POSITIONS, table


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        mxfp4 = bool(dict(variant.constants)["MXFP4"])
        for tokens, heads in ((11, 64), (3, 5)):
            name = f"{tokens} tokens, {heads} heads, {dtype}{', MXFP4' * mxfp4}"
            yield Case(name, _call(tokens, heads, dtype, mxfp4), TOLERANCE_OF_4_BITS if mxfp4 else TOLERANCE)


def _call(tokens: int, heads: int, dtype: torch.dtype, mxfp4: bool) -> Callable[..., list[Tensor]]:
    def run(index_query: Callable[..., Any], device: torch.device) -> list[Tensor]:
        query = randn((tokens, heads, DIM), dtype, device, seed=1)
        weights = randn((tokens, 32 + heads), torch.float32, device, seed=2)[:, 32:]
        cache = torch.zeros((1, 64 * key_bytes(DIM, mxfp4)), dtype=torch.uint8, device=device)
        positions = torch.tensor(POSITIONS, device=device)[1 : tokens + 1]
        codes, out = index_query(query, weights, positions, table(device), cache, mxfp4)
        if mxfp4:
            return [numbers(*pages(codes, DIM, mxfp4)), out]
        return [codes.float() * out.unsqueeze(-1)]

    return run
