"""Calls that launch every variant of the op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.cases import TOLERANCES, Case, randn
from kernels.rotary_cache import variants
from kernels.rotary_cache.frequencies import cos_sin_table, inverse_frequencies
from kernels.selection import Context

_BLOCKS, _BLOCK_SIZE = 4, 16
_EPS = 1e-6
# A key that is rounded once more on its way may fall on the other side of a tie, a sixteenth away.
_FP8_TOLERANCE = 2e-2


class Shape(NamedTuple):
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int


def cases(arch: int, model: Context | None = None) -> Iterator[Case]:
    for variant in variants.variants(arch, model):
        constants = dict(variant.constants)
        dtype = torch.bfloat16 if variant.arguments[0] == "*bf16" else torch.float16
        cache_dtype = {"*bf16": torch.bfloat16, "*fp16": torch.float16}.get(variant.arguments[7], torch.float8_e4m3fn)
        block, norm, interleaved = int(constants["BLOCK"]), bool(constants["NORM"]), bool(constants["INTERLEAVED"])
        for shape, offset in ((Shape(6, 2, block, block), 0.0), (Shape(5, 1, block - 24, block // 4), 1.0)):
            normed = "" if not norm else "normed with an offset, " if offset else "normed, "
            form = f"{normed}{'interleaved' if interleaved else 'in halves'}"
            name = f"{shape} {form}, {dtype} into {cache_dtype}"
            tolerance = _FP8_TOLERANCE if cache_dtype == torch.float8_e4m3fn else TOLERANCES[dtype]
            yield Case(name, _call(shape, dtype, cache_dtype, norm, interleaved, offset), tolerance)


def _call(
    shape: Shape, dtype: torch.dtype, cache_dtype: torch.dtype, norm: bool, interleaved: bool, offset: float
) -> Callable[..., list[Tensor]]:
    def run(rotary_cache: Callable[..., Any], device: torch.device) -> list[Tensor]:
        heads, kv_heads, head_dim, rotary_dim = shape
        # From the fused projection; values have large and tiny numbers among them.
        qkv = randn((11, heads + 2 * kv_heads, head_dim), torch.float32, device, seed=1)
        qkv[:, heads + kv_heads :] *= torch.logspace(-4, 3, head_dim).to(device)
        query, key, value = qkv.to(dtype).split((heads, kv_heads, kv_heads), dim=1)
        pages = (_BLOCKS, _BLOCK_SIZE, kv_heads, head_dim)
        caches = [randn(pages, torch.float32, device, seed).to(cache_dtype) for seed in (2, 3)]
        # Of longer tensors, 8 bytes in. A slot of -1 is of padding.
        slots = torch.tensor([0, 5, 63, 0, -1, 17, 16, 15, 40, -1, 39, 33], device=device)[1:]
        positions = torch.tensor([3, 39, 0, 17, 18, 19, 2, 31, 7, 8, 38, 1], device=device)[1:]
        table = cos_sin_table(*inverse_frequencies(rotary_dim, 10000.0), 40, dtype).to(device)
        weights = (randn((head_dim,), dtype, device, seed=4), randn((head_dim,), dtype, device, seed=5))
        scales = (0.037, 2.5) if cache_dtype == torch.float8_e4m3fn else (1.0, 1.0)
        rotary_cache(
            query, key, value, positions, table, *caches, slots, weights if norm else None, _EPS, interleaved, *scales,
            offset,
        )  # fmt: skip
        # Values are equal to the bit.
        return [query, caches[0].float(), caches[1].view(torch.uint8)]

    return run
