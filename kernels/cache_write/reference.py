"""Cache write in plain torch."""

from __future__ import annotations

from torch import Tensor


def cache_write(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write `key` and `value` [T, kv_heads, head_dim] into the caches [blocks, block_size, kv_heads, head_dim] *in
    place*.

    `slot_mapping` [T], int64, is block * block_size + offset of each token. Slots are distinct.
    """
    key_cache.flatten(0, 1).index_copy_(0, slot_mapping, key.to(key_cache.dtype))
    value_cache.flatten(0, 1).index_copy_(0, slot_mapping, value.to(value_cache.dtype))
