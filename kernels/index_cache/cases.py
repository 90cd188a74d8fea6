"""Calls that launch every variant of the op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import Case, randn
from kernels.index_cache import variants
from kernels.index_cache.norm import KeyNorm
from kernels.index_cache.reference import pages
from kernels.indexer import key_bytes
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies
from kernels.selection import Context

# Of codes in 8 bits: sums in another order round a few numbers to the next one.
TOLERANCE = 2e-2
TOLERANCE_OF_4_BITS = 4e-2


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        interleaved = bool(dict(variant.constants)["INTERLEAVED"])
        for heads, queries, block_size in ((64, 11, 16), (32, 3, 64)):
            name = f"{queries} queries of {heads} heads, blocks of {block_size}, {dtype}, interleaved {interleaved}"
            yield Case(name, _call(heads, queries, block_size, dtype, interleaved), TOLERANCE)


def _call(
    heads: int, queries: int, block_size: int, dtype: torch.dtype, interleaved: bool
) -> Callable[..., list[Tensor]]:
    dim, tokens = variants.DIM, 11

    def run(index_cache: Callable[..., Any], device: torch.device) -> list[Tensor]:
        query = randn((queries, heads, dim), dtype, device, seed=1)
        key = randn((tokens, 64 + dim), dtype, device, seed=2)[:, 64:]
        weights = randn((queries, heads), torch.float32, device, seed=3)
        weight, bias = (randn((dim,), torch.float32, device, seed=seed) for seed in (4, 5))
        norm = KeyNorm(weight, bias, 1e-6)
        cache = torch.full((64 // block_size, block_size * key_bytes(dim)), 0x38, dtype=torch.uint8, device=device)
        # Of longer tensors, 8 bytes in. A slot of -1 is of padding.
        slots = torch.tensor([0, 5, 63, 0, -1, 17, 16, 15, 40, -1, 39, 33], device=device)[1:]
        positions = torch.tensor([3, 39, 0, 17, 18, 19, 2, 31, 7, 8, 38, 1], device=device)[1:]
        table = cos_sin_table(*inverse_frequencies(variants.ROTARY, 10000.0), 40, dtype).to(device)
        codes, scaled = index_cache(query, key, weights, positions, table, norm, cache, slots, interleaved)
        keys, scales = pages(cache, dim)
        return [codes.float() * scaled.unsqueeze(-1), keys.float() * scales]

    return run
