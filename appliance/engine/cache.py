"""The memory of the paged cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from appliance.checkpoint.cache_specs import CacheSpec
from appliance.models.batch import LayerCache


def allocate_cache(
    specs: Sequence[CacheSpec], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[LayerCache]:
    """One cache a layer, as its spec says, of zeros. A layer with a window keeps every token too."""
    caches = []
    for spec in specs:
        shape = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
        key, value = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        caches.append(LayerCache(key, value))
    return caches


def cache_bytes(caches: list[LayerCache]) -> int:
    return sum(cache.key.nbytes + cache.value.nbytes for cache in caches)


def not_finite(caches: list[LayerCache], blocks: list[int]) -> set[int]:
    """Those of `blocks` that hold NaN or infinity in some layer."""
    if not blocks:
        return set()
    index = torch.tensor(blocks, device=caches[0].key.device)
    finite = torch.ones(len(blocks), dtype=torch.bool, device=index.device)
    for cache in caches:
        for tensor in (cache.key, cache.value):
            found = tensor.view(torch.uint8).index_select(0, index).view(tensor.dtype)
            finite &= found.float().flatten(1).isfinite().all(dim=-1)
    return {block for block, sound in zip(blocks, finite.tolist(), strict=True) if not sound}


def scrub(caches: list[LayerCache], blocks: list[int]) -> None:
    """Write zeros over blocks that hold what was not computed from numbers. Attention lets nothing in that a sequence
    does not see (`kernels.paged_attention`), so this is a second line of defence, and only damaged blocks need it."""
    for cache in caches:
        for tensor in (cache.key, cache.value):
            tensor.view(torch.uint8)[blocks] = 0  # whose bits are those of zero in every format
