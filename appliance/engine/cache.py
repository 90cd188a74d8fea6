"""The memory of the paged cache."""

from __future__ import annotations

import torch

from appliance.models.batch import LayerCache


def allocate_cache(
    num_layers: int,
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[LayerCache]:
    """One cache a layer, of zeros: attention multiplies what lies behind the end of a sequence by zero, so it must be
    finite."""
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    return [
        LayerCache(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
        for _ in range(num_layers)
    ]


def cache_bytes(caches: list[LayerCache]) -> int:
    return sum(cache.key.nbytes + cache.value.nbytes for cache in caches)


def scrub(caches: list[LayerCache], blocks: list[int]) -> None:
    """Write zeros over blocks that may hold NaN, so that they cannot harm the next request that gets them."""
    for cache in caches:
        for tensor in (cache.key, cache.value):
            tensor.view(torch.uint8)[blocks] = 0  # whose bits are those of zero in every format
