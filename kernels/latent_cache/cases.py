"""Calls that launch every variant of the op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.latent_cache import variants
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies
from kernels.selection import Context

_BLOCKS, _BLOCK_SIZE = 4, 16


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        constants = dict(variant.constants)
        rank, rope = int(constants["RANK"]), int(constants["ROPE"])
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        for heads, nope in ((7, 128), (1, 24)):
            name = f"{heads} heads of {nope} + {rope}, latents of {rank}, {dtype}"
            yield Case(name, _call(heads, nope, rank, rope, dtype), TOLERANCES[dtype])


def _call(heads: int, nope: int, rank: int, rope: int, dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    def run(latent_cache: Callable[..., Any], device: torch.device) -> list[Tensor]:
        # Of wider tensors, as after a fused projection.
        query = randn((11, heads + 1, nope + rope), dtype, device, seed=1)[:, :heads]
        latent = randn((11, 64 + rank + rope), dtype, device, seed=2)[:, 64:]
        cache = randn((_BLOCKS, _BLOCK_SIZE, rank + rope), dtype, device, seed=3)
        weight = randn((rank,), dtype, device, seed=4)
        # Of longer tensors, 8 bytes in. A slot of -1 is of padding.
        slots = torch.tensor([0, 5, 63, 0, -1, 17, 16, 15, 40, -1, 39, 33], device=device)[1:]
        positions = torch.tensor([3, 39, 0, 17, 18, 19, 2, 31, 7, 8, 38, 1], device=device)[1:]
        table = cos_sin_table(*inverse_frequencies(rope, 10000.0), 40, dtype).to(device)
        latent_cache(query, latent, positions, table, weight, 1e-6, cache, slots)
        return [query, cache]

    return run
