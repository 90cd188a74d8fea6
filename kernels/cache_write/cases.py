"""Calls that launch every variant of the cache write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.cache_write import variants
from kernels.cases import Case, randn
from kernels.selection import Context

_BLOCKS, _BLOCK_SIZE = 4, 16


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        cache_dtype = {"*bf16": torch.bfloat16, "*fp16": torch.float16}.get(variant.arguments[2], torch.float8_e4m3fn)
        for kv_heads, head_dim in ((1, 64), (3, 96), (8, 128)):
            yield Case(f"{kv_heads} heads of {head_dim} {dtype} into {cache_dtype}",
                       _call(kv_heads, head_dim, dtype, cache_dtype), 0.0)  # fmt: skip


def _call(kv_heads: int, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype) -> Callable[..., list[Tensor]]:
    def run(cache_write: Callable[..., Any], device: torch.device) -> list[Tensor]:
        # From the fused projection, with large and tiny numbers among them.
        qkv = randn((11, 4 * kv_heads, head_dim), torch.float32, device, seed=1)
        qkv *= torch.logspace(-4, 3, head_dim).to(device)  # whose last bit depends on the device that computes it
        key, value = qkv.to(dtype)[:, 2 * kv_heads :].split(kv_heads, dim=1)
        shape = (_BLOCKS, _BLOCK_SIZE, kv_heads, head_dim)
        caches = [randn(shape, torch.float32, device, seed).to(cache_dtype) for seed in (2, 3)]
        # Of a longer tensor, 8 bytes in. A slot of -1 is of padding.
        slots = torch.tensor([0, 5, 63, 0, -1, 17, 16, 15, 40, -1, 39, 33], device=device)[1:]
        scales = (0.37, 2.5) if cache_dtype == torch.float8_e4m3fn else (1.0, 1.0)
        cache_write(key, value, *caches, slots, *scales)
        return [cache.view(torch.uint8) for cache in caches]  # equal to the bit

    return run
